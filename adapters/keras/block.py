"""The block: what Keras objects made inside it are told as they are made."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any, final

import keras
from dream.adapters.keras import model, optimizer
from dream.adapters.keras.engine import Engine


@final
class KerasBlock:
    """Two constructors are changed while it is open: the model's and the optimizer's."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._kept: list[tuple[type[Any], Any]] = []

    def enter(self) -> None:
        self._change(keras.Model, model.distribute)
        if self._engine.parts > 1:
            self._change(keras.optimizers.Optimizer, optimizer.distribute)

    def exit(self) -> None:
        while self._kept:
            owner, init = self._kept.pop()
            if init is None:
                del owner.__init__
            else:
                owner.__init__ = init

    def prepare(self, item: Any) -> Any:
        """A model or an optimizer that was made before the block, distributed."""
        if isinstance(item, keras.Model):
            return model.distribute(item, self._engine)
        if isinstance(item, keras.optimizers.Optimizer) and self._engine.parts > 1:
            return optimizer.distribute(item, self._engine)
        return item

    def _change(self, owner: type[Any], distribute: Callable[[Any, Engine], Any]) -> None:
        own = vars(owner).get("__init__")
        init = owner.__init__  # type: ignore[misc]
        engine = self._engine

        @wraps(init)
        def wrapped(self: Any, *args: Any, **kwargs: Any) -> None:
            init(self, *args, **kwargs)
            distribute(self, engine)

        self._kept.append((owner, own))
        owner.__init__ = wrapped  # type: ignore[misc]
