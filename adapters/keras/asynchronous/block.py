"""The block of replicas that step alone: Keras models and optimizers made in it are told so."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any, final

import keras

from dream.adapters.keras import saving
from dream.adapters.keras.asynchronous.models import Models

_SAVERS = (
    (keras.models, "save_model"),
    (keras.saving, "save_model"),
    (keras.saving, "save_weights"),
)


@final
class Block:
    """While it is open, the constructors of models and optimizers are changed, and the functions
    that save models."""

    def __init__(self, models: Models, rank: int) -> None:
        self._models, self._rank = models, rank
        self._kept: list[tuple[Any, str, Any]] = []

    def enter(self) -> None:
        self._tell(keras.Model, self._models.take)
        self._tell(keras.optimizers.Optimizer, self._models.optimizer)
        for module, name in _SAVERS:
            save = getattr(module, name)
            self._replace(module, name, saving.on_rank(save, name, self._rank))

    def exit(self) -> None:
        while self._kept:
            owner, name, own = self._kept.pop()
            if own is None:
                delattr(owner, name)
            else:
                setattr(owner, name, own)

    def takes(self, item: Any) -> bool:
        """Whether this is a model or an optimizer of Keras's."""
        return isinstance(item, (keras.Model, keras.optimizers.Optimizer))

    def prepare(self, item: Any) -> Any:
        """A model or an optimizer that was made before the block."""
        if isinstance(item, keras.Model):
            return self._models.take(item)
        return self._models.optimizer(item)

    def _tell(self, owner: type[Any], take: Callable[[Any], Any]) -> None:
        init = owner.__init__

        @wraps(init)
        def wrapped(self: Any, *args: Any, **kwargs: Any) -> None:
            init(self, *args, **kwargs)
            take(self)

        self._replace(owner, "__init__", wrapped)

    def _replace(self, owner: Any, name: str, value: Any) -> None:
        self._kept.append((owner, name, vars(owner).get(name)))
        setattr(owner, name, value)
