"""The block of a strategy on a mesh: Keras models and optimizers made in it are told so."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any, Protocol, final

import keras

from dream.adapters.tensorflow.split import files

_SAVERS = (
    (keras.models, "save_model"),
    (keras.saving, "save_model"),
    (keras.saving, "save_weights"),
)


class Takes(Protocol):
    """What changes the models and optimizers of a block."""

    def take(self, model: Any) -> Any: ...

    def optimizer(self, optimizer: Any) -> Any: ...


@final
class Block:
    """While it is open, the constructors of models and optimizers are changed, and the functions
    that save models."""

    def __init__(self, takes: Takes, rank: int) -> None:
        self._takes = takes
        self._rank = rank
        self._kept: list[tuple[Any, str, Any]] = []

    def enter(self) -> None:
        self._tell(keras.Model, self._takes.take)
        self._tell(keras.optimizers.Optimizer, self._takes.optimizer)
        for module, name in _SAVERS:
            save = getattr(module, name)
            self._replace(module, name, files.together(save, name, self._rank))

    def exit(self) -> None:
        while self._kept:
            owner, name, own = self._kept.pop()
            if own is None:
                delattr(owner, name)
            else:
                setattr(owner, name, own)

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
