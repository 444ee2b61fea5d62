"""Modules that a parent of ranks has imported, hidden from a rank until the rank imports them.

`"torch" in sys.modules`, import hooks, warnings, variables that an import sets and what it prints
are then as in a fresh interpreter. Where the rank would import otherwise than its parent did, since
its script has changed a variable or put another module in the way, it has to start fresh.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import sys
import tempfile
import warnings
import weakref
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from importlib import import_module
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any, NoReturn, final

_NEEDS_OPTREE = "torch.utils._cxx_pytree"
"""Holds a generator of optree's, and comes before it."""
_MAIN = {"__main__", "__mp_main__"}
_SEEDED_AT_IMPORT = {"numpy.random", "torch"}


def _package(name: str) -> str:
    return name.partition(".")[0]


@dataclass
class _Effects:
    """What an import did beside bringing modules."""

    environ: dict[str, str] = field(default_factory=dict)
    first: list[Any] = field(default_factory=list)
    """Filters of warnings, put before the others."""

    last: list[Any] = field(default_factory=list)
    printed: list[bytes] = field(default_factory=list)
    """On stdout, and on stderr."""

    def repeat(self) -> None:
        os.environ.update(self.environ)
        filters: list[Any] = warnings.filters  # type: ignore[assignment]
        filters[:0] = [each for each in self.first if each not in filters]
        filters += [each for each in self.last if each not in filters]
        with warnings.catch_warnings():  # which has Python look at the filters again
            pass


@contextmanager
def _observed(effects: _Effects) -> Iterator[None]:
    """Note what the block does, and undo it."""
    environ, filters = dict(os.environ), list(warnings.filters)
    with _captured(effects.printed):
        yield
    effects.environ = {n: text for n, text in os.environ.items() if environ.get(n) != text}
    now = list(warnings.filters)
    start = next((i for i, each in enumerate(now) if each in filters), len(now))
    effects.first = now[:start]
    effects.last = [each for each in now[start:] if each not in filters]
    warnings.filters[:] = filters  # type: ignore[index]
    os.environ.clear()
    os.environ.update(environ)


@contextmanager
def _captured(printed: list[bytes]) -> Iterator[None]:
    """Keep what the block writes to stdout and stderr, libraries' own writes too."""
    with ExitStack() as held:
        files = [held.enter_context(tempfile.TemporaryFile()) for _ in range(2)]
        for number, file in enumerate(files, 1):
            before = os.dup(number)
            os.dup2(file.fileno(), number)
            held.callback(os.close, before)
            held.callback(os.dup2, before, number)
        try:
            yield
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
            for file in files:
                file.seek(0)
                printed.append(file.read())


@dataclass
class _Group:
    """What the import of a name brings: new is what no import before it had brought."""

    new: set[str]
    brought: set[str]
    effects: _Effects


@final
class HiddenModules(MetaPathFinder, Loader):
    """Python's own modules stay in sight; that these were imported changes nothing."""

    def __init__(self, names: Iterable[str], before: Collection[str]) -> None:
        """Import and hide them. before: modules that every interpreter starts with."""
        self._hidden: dict[str, ModuleType] = {}
        self._groups: dict[str, _Group] = {}
        self._specs: dict[str, ModuleSpec | None] = {}
        self._start_fresh: Callable[[str], NoReturn] | None = None
        self._environ: dict[str, str] = {}
        self._reads: Callable[[str], bool] = bool
        self._path = list(sys.path)
        self._told: set[str] = set()
        self._hide(before)
        sys.meta_path.insert(0, self)
        for name in names:
            self._import(name, before)
        self.packages = {_package(name) for name in {*sys.modules, *self._hidden}} - _MAIN
        self.finalizers = list(weakref.finalize._registry)  # type: ignore[attr-defined]

    def taken_by(self, folder: str) -> str:
        """Return a file of a folder that would be imported where another was, of Python's own too,
        should the folder come first; empty where there is none."""
        return self._taken(folder, {*sys.modules, *self._hidden}) if folder else ""

    def _taken(self, folder: str, names: set[str]) -> str:
        own = os.path.realpath(folder) + os.sep
        for name in sorted(_beside(folder) & names - {"__main__"}):
            module = self._hidden.get(name) or sys.modules[name]
            file = getattr(module, "__file__", None) or ""
            if not os.path.realpath(file).startswith(own):
                return os.path.join(folder, name)  # noqa: PTH118
        return ""

    def serve(
        self,
        environ: Mapping[str, str],
        reads: Callable[[str], bool],
        start_fresh: Callable[[str], NoReturn],
    ) -> None:
        """From now on this is a rank. environ: the variables that imports may read, as they were
        read; reads: whether a variable is one. start_fresh: called with the reason where the rank
        would import otherwise."""
        self._environ, self._reads = dict(environ), reads
        self._start_fresh = start_fresh
        self._new_draws()
        atexit.register(self._end)

    def _end(self) -> None:
        """An interpreter ends by its modules, the last first: those that it does not find outlive
        what they need."""
        self._show({*self._hidden})
        if _NEEDS_OPTREE in sys.modules:
            sys.modules[_NEEDS_OPTREE] = sys.modules.pop(_NEEDS_OPTREE)

    def _import(self, name: str, before: Collection[str]) -> None:
        effects = _Effects()
        with _observed(effects), suppress(Exception):  # the rank's own to raise
            import_module(name)
        known = {module for group in self._groups.values() for module in group.new}
        brought = self._hide(before)
        self._groups[name] = _Group(brought - known, brought, effects)

    def _hide(self, before: Collection[str]) -> set[str]:
        names = [name for name in sys.modules if name not in before and _foreign(name)]
        self._hidden.update({name: sys.modules.pop(name) for name in names})
        return {*names}

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname not in self._hidden:
            return None
        if self._start_fresh is not None and _package(fullname) != "dream":
            why = self._changed(fullname)  # of dream's modules only those it imports read any
            if why and not _joined():
                self._start_fresh(why)
            self._tell_of(why)
        self._specs[fullname] = getattr(self._hidden[fullname], "__spec__", None)
        return ModuleSpec(fullname, self)

    def _tell_of(self, why: str) -> None:
        """Of what comes too late for a new start: the other ranks wait for this one by now."""
        cause = why.partition(" ")[0]
        if why and cause not in self._told:
            self._told.add(cause)
            remedy = "set it above the block, or start by --no-warm"
            text = (
                f"dream run: {why}, in a block that is open: it does not count for that; {remedy}"
            )
            os.write(2, f"{text}.\n".encode())

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        return self._hidden[spec.name]

    def exec_module(self, module: ModuleType) -> None:
        """With it come those that its own import would have brought: all, where it was imported by
        name, else those of its package."""
        assert module.__spec__ is not None
        name = module.__spec__.name
        module.__spec__ = self._specs.pop(name)
        del self._hidden[name]
        group = self._groups.get(name)
        if group is None:
            own = _package(name)
            self._show({each for each in self._brought_with(name) if _package(each) == own})
        else:
            for other in self._groups:  # by its name, for those who watch imports
                if other in group.brought and other in self._hidden:
                    import_module(other)
            self._show(group.brought)
            group.effects.repeat()
            if self._start_fresh is not None:
                for number, text in enumerate(group.effects.printed, 1):
                    os.write(number, text)
        if name == "keras":  # its own import would bring its backend, and watches count on that
            import_module(module.backend.backend())

    def _brought_with(self, name: str) -> set[str]:
        found = (group.new for group in self._groups.values() if name in group.new)
        return next(found, {*self._hidden})

    def _show(self, names: Collection[str]) -> None:
        """In the order in which they were imported, by which an interpreter ends."""
        for name in [each for each in self._hidden if each in names]:
            sys.modules[name] = self._hidden.pop(name)

    def _changed(self, name: str) -> str:
        """Say what the rank's script has changed that an import may read; empty where nothing."""
        set_by_imports: dict[str, set[str]] = {}
        for group in self._groups.values():
            for variable, text in group.effects.environ.items():
                set_by_imports.setdefault(variable, set()).add(text)
        for variable in sorted({*self._environ, *os.environ}):
            now, then = os.environ.get(variable), self._environ.get(variable)
            if (
                now != then
                and self._reads(variable)
                and now not in set_by_imports.get(variable, ())
            ):
                return f"{variable} was set before `import {name}`"
        for folder in sys.path:
            taken = folder not in self._path and self._taken(folder, {*self._hidden})
            if taken:
                return f"{taken} is found before what was imported for `import {name}`"
        return ""

    def _new_draws(self) -> None:
        """Let generators that draw their seed at import draw another: no two ranks share it."""
        for modules in (sys.modules, self._hidden):
            for name in _SEEDED_AT_IMPORT & modules.keys():
                module: Any = modules[name]
                if name == "torch":  # torch.random.seed would import torch.cuda, and unhide all
                    module.default_generator.seed()
                else:  # by seed() it would look seeded by a script
                    module.set_bit_generator(module.MT19937())
        if "multiprocessing.process" in sys.modules:
            sys.modules["multiprocessing.process"].current_process().authkey = os.urandom(32)


def _joined() -> bool:
    """Whether this rank has come to the others, who would not meet it again."""
    watcher = sys.modules.get("dream.stall.watcher")
    return watcher is not None and watcher.begun()


def _foreign(name: str) -> bool:
    return _package(name) not in {*sys.stdlib_module_names, "__mp_main__"}


def _beside(folder: str) -> set[str]:
    """Return the names that modules and packages of a folder would be imported by."""
    found = set()
    with suppress(OSError), os.scandir(folder or os.curdir) as entries:
        for entry in entries:
            stem, dot, _ = entry.name.partition(".")
            if entry.name.endswith((".py", ".so", ".pyc")) and dot:
                found.add(stem)
            elif os.path.isfile(f"{entry.path}/__init__.py"):  # noqa: PTH113
                found.add(entry.name)
    return found


def show_command(words: Sequence[str]) -> None:
    """Show a command line in the place of this process's own, as much of it as has room. Nothing
    where the system does not let it."""
    sys.orig_argv[:] = words
    with contextlib.suppress(OSError, ValueError, IndexError):
        with open("/proc/self/stat") as file:  # noqa: PTH123
            fields = file.read().rpartition(")")[2].split()
        start, end = int(fields[45]), int(fields[46])  # proc(5): arg_start and arg_end
        text = " ".join(words).encode(errors="surrogateescape")[: end - start - 2]
        with open("/proc/self/mem", "r+b", buffering=0) as memory:  # noqa: PTH123
            memory.seek(start)
            # a last byte that is not zero has Linux show what comes before the first zero
            memory.write(text.ljust(end - start - 1, b"\0") + b"\1")
