"""The block: what Keras objects made inside it are told as they are made."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack
from functools import wraps
from typing import Any, final

import keras

from dream import recording
from dream.adapters.keras import model, optimizer, saving, start
from dream.adapters.keras.engine import Engine

_SAVERS = (
    (keras.models, "save_model"),
    (keras.saving, "save_model"),
    (keras.saving, "save_weights"),
)


@final
class KerasBlock:
    """While it is open, the constructors of models and optimizers are changed, and the functions
    that save models."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self._kept: list[tuple[Any, str, Any]] = []
        self._open = ExitStack()

    def creating(self) -> AbstractContextManager[Any]:
        """Where variables are created so that every replica has its copy."""
        return self.engine.creating()

    def enter(self) -> None:
        recorder = recording.active()
        if recorder is not None and recorder.keras_is_news():
            from dream.adapters.keras import observing  # for scripts that are verified alone

            observing.observe(recorder)
        self._open.enter_context(self.creating())
        self._tell(keras.Model, model.distribute)
        if self.engine.parts > 1:
            self._tell(keras.optimizers.Optimizer, optimizer.distribute)
            for module, name in _SAVERS:
                save = getattr(module, name)
                self._replace(module, name, saving.on_rank(save, name, self.engine.rank))

    def exit(self) -> None:
        while self._kept:
            owner, name, own = self._kept.pop()
            if own is None:
                delattr(owner, name)
            else:
                setattr(owner, name, own)
        self._open.close()

    def prepare(self, item: Any) -> Any:
        """A model or an optimizer that was made before the block, distributed."""
        if isinstance(item, keras.Model):
            return model.distribute(item, self.engine)
        if isinstance(item, keras.optimizers.Optimizer) and self.engine.parts > 1:
            return optimizer.distribute(item, self.engine)
        return item

    def takes(self, item: Any) -> bool:
        """Whether this is a model or an optimizer of Keras's."""
        return isinstance(item, (keras.Model, keras.optimizers.Optimizer))

    def start(self, item: Any) -> None:
        """What `fit` does beside agreeing on variables, for a first step taken by hand."""
        if self.engine.parts > 1 and isinstance(item, keras.Layer):
            start.offset_seeds(item, self.engine)
            start.tell_of_statistics(item)

    def _tell(self, owner: type[Any], distribute: Callable[[Any, Engine], Any]) -> None:
        """Have instances of the class distributed as they are made."""
        init = owner.__init__
        engine = self.engine

        @wraps(init)
        def wrapped(self: Any, *args: Any, **kwargs: Any) -> None:
            init(self, *args, **kwargs)
            distribute(self, engine)

        self._replace(owner, "__init__", wrapped)

    def _replace(self, owner: Any, name: str, value: Any) -> None:
        self._kept.append((owner, name, vars(owner).get(name)))
        setattr(owner, name, value)
