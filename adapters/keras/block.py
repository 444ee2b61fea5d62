"""The block: what Keras objects made inside it are told as they are made."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack
from functools import wraps
from typing import Any, final

import keras
from dream.adapters.keras import model, optimizer, start
from dream.adapters.keras.engine import Engine


@final
class KerasBlock:
    """Two constructors are changed while it is open: the model's and the optimizer's."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._kept: list[tuple[type[Any], Any]] = []
        self._open = ExitStack()

    def creating(self) -> AbstractContextManager[Any]:
        """Where variables are created so that every replica has its copy."""
        return self._engine.creating()

    def start(self, built: Any) -> None:
        """A built model is about to be trained by hand: what fit would do first."""
        start.offset_seeds(built, self._engine)
        start.tell_of_statistics(built)

    def enter(self) -> None:
        self._open.enter_context(self.creating())
        self._change(keras.Model, model.distribute)
        if self._engine.parts > 1:
            self._change(keras.optimizers.Optimizer, optimizer.distribute)

    def exit(self) -> None:
        self._open.close()
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

    def start(self, item: Any) -> None:
        """What `fit` does beside agreeing on variables, for a first step taken by hand."""
        if self._engine.parts > 1 and isinstance(item, keras.Layer):
            start.offset_seeds(item, self._engine)
            start.tell_of_statistics(item)

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
