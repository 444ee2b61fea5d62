"""Which framework a block is for, without importing one."""

from __future__ import annotations

import sys
from collections.abc import Callable, Collection, Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from importlib.util import find_spec
from types import ModuleType
from typing import final

from dream._errors import ConfigurationError, unknown
from dream.strategies import registry
from dream.strategies.spec import FRAMEWORKS, Framework


def check(name: str, source: str) -> Framework:
    """The name of a framework that has adapters."""
    for framework in FRAMEWORKS:
        if name == framework:
            return framework
    raise unknown(f"framework in {source}", name, FRAMEWORKS)


def imported() -> Framework | None:
    """The framework, where what is imported leaves no choice: Keras's backend where that is torch,
    else the only one of torch and TensorFlow. None when there is nothing to go by yet, or both
    are: libraries drag in what a script never uses."""
    loaded = several()
    if "torch" in loaded and _backend_of_keras() == "torch":
        return "torch"
    return loaded[0] if len(loaded) == 1 else None


def several() -> list[Framework]:
    """The frameworks that are imported, Keras's backend among them."""
    loaded = [name for name in FRAMEWORKS if name in sys.modules]
    backend = _backend_of_keras()
    if backend is not None and backend not in loaded:
        loaded.append(backend)
    return loaded


def _backend_of_keras() -> Framework | None:
    keras = sys.modules.get("keras")
    if keras is None or not hasattr(keras, "backend"):
        return None
    return check(keras.backend.backend(), "Keras's backend")


def of(*objects: object) -> Framework | None:
    """The framework whose objects these are, by their classes; None where none says."""
    for item in objects:
        for base in type(item).__mro__:
            root = base.__module__.partition(".")[0]
            if root == "keras":
                return _backend_of_keras()
            if root in FRAMEWORKS:
                return check(root, "a class")
    return None


def of_script() -> Framework | None:
    """The framework that the script itself names, by the modules that it has imported under a name
    of its own; None where that is none or both."""
    script = sys.modules.get("__main__")
    bound = {v.__name__ for v in vars(script).values() if isinstance(v, ModuleType)}
    roots = {name.partition(".")[0] for name in bound}
    named = [name for name in FRAMEWORKS if name in roots]
    if "keras" in roots and (backend := _backend_of_keras()) is not None and backend not in named:
        named.append(backend)
    return named[0] if len(named) == 1 else None


def undecided(said: str) -> ConfigurationError:
    """The error where both frameworks are there, and one is to be named. said: for what."""
    return ConfigurationError(
        "Both torch and tensorflow are imported, so the framework cannot be guessed. Received: "
        f"framework=None for {said}. Pass framework='torch' or framework='tensorflow'."
    )


class ImportWatch(MetaPathFinder):
    """Calls back once, after the first module of these names that is imported while it is
    installed; by default a framework.

    Keras imports its backend half-way through its own import: the outermost of the watched
    imports is the one that counts.
    """

    def __init__(
        self, found: Callable[[], None], names: Collection[str] = ("keras", *FRAMEWORKS)
    ) -> None:
        self._found = found
        self._names = names
        self._depth = 0

    def start(self) -> None:
        """Call back now where one of them is there; else install it."""
        if any(name in sys.modules for name in self._names):
            self._found()
        else:
            self.install()

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
        if fullname not in self._names:
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


@final
class FirstUse:
    """Tells once which framework a block is for, as soon as that is known: by an import that
    leaves no choice, else by the first model, optimizer or loader that is made or used."""

    def __init__(self, decided: Callable[[Framework], None]) -> None:
        self._decided = decided
        self._imports: list[ImportWatch] = []
        self._stops: list[Callable[[], None]] = []

    def start(self) -> None:
        """Begin to look. What is imported later is looked at too."""
        loaded = several()
        awaited = [name for name in (*FRAMEWORKS, "keras") if name not in sys.modules]
        if "keras" not in sys.modules and "tensorflow" in loaded:
            loaded.remove("tensorflow")  # nobody trains with it yet
        for framework in loaded:
            watch = registry.load(registry.FIRST_USES[framework])
            self._stops.append(watch(lambda framework=framework: self._decided(framework)))
        if awaited:
            self._imports.append(ImportWatch(self._imported, awaited))
            self._imports[-1].install()

    def stop(self) -> None:
        for watch in self._imports:
            watch.remove()
        for stop in self._stops:
            stop()
        self._imports, self._stops = [], []

    def _imported(self) -> None:
        self.stop()
        framework = imported()
        if framework is None:
            self.start()
        else:
            self._decided(framework)
