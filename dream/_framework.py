"""Which framework a block is for, without importing one."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from importlib.util import find_spec
from types import ModuleType

from dream._errors import ConfigurationError, unknown
from dream._spec import FRAMEWORKS, Framework


def check(name: str, source: str) -> Framework:
    """The name of a framework that has adapters."""
    for framework in FRAMEWORKS:
        if name == framework:
            return framework
    raise unknown(f"framework in {source}", name, FRAMEWORKS)


def imported() -> Framework | None:
    """What the script has imported so far: Keras's backend, else the only one of torch and
    TensorFlow; None when there is nothing to go by yet."""
    keras = sys.modules.get("keras")
    if keras is not None and hasattr(keras, "backend"):
        return check(keras.backend.backend(), "Keras's backend")
    loaded = [name for name in FRAMEWORKS if name in sys.modules]
    if len(loaded) > 1:
        raise ConfigurationError(
            "Both torch and tensorflow are imported, so the framework cannot be guessed. "
            "Received: framework=None. Say dream.strategy(..., framework='torch') or "
            "framework='tensorflow'."
        )
    return loaded[0] if loaded else None


class ImportWatch(MetaPathFinder):
    """Calls back once, after the first framework that is imported while it is installed.

    Keras imports its backend half-way through its own import: the outermost of the watched
    imports is the one that counts.
    """

    _NAMES = ("keras", *FRAMEWORKS)

    def __init__(self, found: Callable[[], None]) -> None:
        self._found = found
        self._depth = 0

    def install(self) -> None:
        sys.meta_path.insert(0, self)

    def remove(self) -> None:
        if self in sys.meta_path:
            sys.meta_path.remove(self)

    def find_spec(
        self,
        fullname: str,
        path: Sequence[str] | None,
        target: ModuleType | None = None,
    ) -> ModuleSpec | None:
        if fullname not in self._NAMES:
            return None
        sys.meta_path.remove(self)
        try:
            spec = find_spec(fullname)
        finally:
            sys.meta_path.insert(0, self)
        if spec is not None and spec.loader is not None:
            spec.loader = _Watched(spec.loader, self)
        return spec

    def begin(self) -> None:
        self._depth += 1

    def end(self) -> None:
        self._depth -= 1
        if self._depth == 0 and self in sys.meta_path:
            self.remove()
            self._found()


class _Watched(Loader):
    """A loader that tells the watch when its module's code starts and has finished."""

    def __init__(self, loader: Loader, watch: ImportWatch) -> None:
        self._loader = loader
        self._watch = watch

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        return self._loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        spec = module.__spec__
        if spec is not None:
            spec.loader = self._loader
        module.__loader__ = self._loader
        self._watch.begin()
        try:
            self._loader.exec_module(module)
        except BaseException:
            self._watch.remove()
            raise
        self._watch.end()
