"""What of Keras's a block changes, and puts back."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any, final

import keras

_WRITERS = (
    (keras.models, "save_model"),
    (keras.saving, "save_model"),
    (keras.saving, "save_weights"),
)
_READERS = (
    (keras.models, "load_model"),
    (keras.saving, "load_model"),
    (keras.saving, "load_weights"),
)
_How = Callable[[Callable[..., Any], str], Callable[..., Any]]


@final
class Changes:
    """Constructors and functions of Keras's, as they are changed until `undo`."""

    def __init__(self) -> None:
        self._kept: list[tuple[Any, str, Any]] = []

    def made(self, owner: type[Any], take: Callable[[Any], Any]) -> None:
        """Have `take` told of each instance of the class, once it is made."""
        init = owner.__init__

        @wraps(init)
        def wrapped(self: Any, *args: Any, **kwargs: Any) -> None:
            init(self, *args, **kwargs)
            take(self)

        self._replace(owner, "__init__", wrapped)

    def filed(self, writing: _How, reading: _How) -> None:
        """Have models saved by `writing(save, name)` in the place of Keras's own `save`, and read
        by `reading(load, name)`."""
        for how, changed in ((writing, _WRITERS), (reading, _READERS)):
            for module, name in changed:
                self._replace(module, name, how(getattr(module, name), name))

    def undo(self) -> None:
        while self._kept:
            owner, name, own = self._kept.pop()
            if own is None:
                delattr(owner, name)
            else:
                setattr(owner, name, own)

    def _replace(self, owner: Any, name: str, value: Any) -> None:
        self._kept.append((owner, name, vars(owner).get(name)))
        setattr(owner, name, value)
