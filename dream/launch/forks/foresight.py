"""What a script will import, and the variables that it sets before, read off its source.

A wrong guess costs time and nothing else: what a rank does not import, it does not see, and what it
would import otherwise it imports in a fresh interpreter.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from importlib.util import find_spec
from pathlib import Path

from dream.cluster.settings import FRAMEWORK, STRATEGY

IMPORTS = "DREAM_FORK_IMPORTS"
"""The variable that says what ranks will import: "torch,keras", or any modules. Else `--framework`
tells, or the script's own lines."""

_MODULES = {
    "torch": "torch",
    "tensorflow": "tensorflow",
    "keras": "keras",
}
_TRAINS = {
    "torch": "torch.distributed.tensor torch.distributed.fsdp torch.distributed.pipelining "
    "torch._dynamo "  # the optimizers' first step imports it
    "dream.adapters.pytorch.parallel.ddp.parallelism dream.adapters.pytorch.adapter "
    "dream.adapters.shared_memory.pytorch",
    "tensorflow": "tensorflow.experimental.dtensor dream.adapters.tensorflow.parallel.replicas "
    "dream.adapters.shared_memory.tensorflow",
    "keras": "dream.adapters.keras.hooks",
}
"""What follows where dream is imported too, for it trains then."""

_MOST_FILES = 100
_LONGEST_FILE = 1 << 20


@dataclass(frozen=True, slots=True)
class Foresight:
    """What a rank will import, as far as its script tells before it runs.

    modules: in the order in which to import them; none where that is not known. sets: variables
    that the script gives a constant before its first import of a framework.
    """

    modules: tuple[str, ...] = ()
    sets: Mapping[str, str] = field(default_factory=dict)


def foresee(command: Sequence[str], environ: Mapping[str, str]) -> Foresight:
    """Return what a rank will import. command: a script and its arguments, as `child.py` with what
    it runs. environ: the rank's."""
    found = _read(command)
    sets = {name: to for name, (to, anew) in found.sets.items() if anew or name not in environ}
    if environ.get(IMPORTS):
        return Foresight(_modules(environ[IMPORTS].split(","), trains=True), sets)
    names = found.frameworks()
    if command[1:2] == ["function"]:  # which is pickled by the names of what is imported here
        names = [name for name in _MODULES if name in sys.modules]
    if framework := environ.get(FRAMEWORK):
        keras = framework == "tensorflow" or "keras" in {*names, *found.names, *found.inside}
        backend = environ.get("KERAS_BACKEND") == framework
        names = [framework, *["keras"] * (keras and backend)]
    trains = bool(environ.get(STRATEGY) or environ.get(FRAMEWORK))
    trains = trains or "dream" in found.names | found.inside
    modules = _modules(names, trains=trains or command[1:2] == ["function"])
    return Foresight(modules + _seeded(found, {**environ, **sets}), sets)


def _seeded(found: _Found, environ: Mapping[str, str]) -> tuple[str, ...]:
    """Return what `keras.utils.set_random_seed` imports: TensorFlow, on torch too, where it is
    installed."""
    on_torch = found.seeds and "keras" in found.names and environ.get("KERAS_BACKEND") == "torch"
    return ("tensorflow",) if on_torch and find_spec("tensorflow") else ()


def frameworks_of(command: Sequence[str]) -> list[str]:
    """Return the frameworks that the source of a script or module imports. command: as for
    `foresee`."""
    return _read(command).frameworks()


def imports_dream(command: Sequence[str]) -> bool:
    """Return whether the source of a script or module, or of those beside it, imports dream; True
    where there is no source to be read. command: as for `foresee`."""
    found = _read(command)
    return _source(command) is None or "dream" in found.names | found.inside


def _read(command: Sequence[str]) -> _Found:
    source = _source(command)
    return _Found() if source is None else _scan(source, source.stat().st_mtime_ns)


def _modules(names: Sequence[str], *, trains: bool) -> tuple[str, ...]:
    modules = [module for name in names for module in _MODULES.get(name, name).split()]
    later = [module for name in names if trains for module in _TRAINS.get(name, "").split()]
    return ("numpy", "dream", *modules, *later) if modules else ()


def _source(command: Sequence[str]) -> Path | None:
    """Return the file that is run; None where it is a function, or not found."""
    kind, name = [*command[1:3], "", ""][:2]
    path = Path(name)
    if kind == "module":
        place = Path(*name.split("."))
        path = next((p for p in (place / "__main__.py", place.with_suffix(".py")) if p.is_file()),
                    place)  # fmt: skip
    return path if kind in ("script", "module") and path.is_file() else None


@dataclass(slots=True)
class _Found:
    """What was read in a script and the modules of its own.

    names: packages that are imported, by the script or its own modules; inside: by functions of
    theirs, which may never be called; seeds: whether Keras's generators are seeded by name.
    """

    names: set[str] = field(default_factory=set)
    inside: set[str] = field(default_factory=set)
    seeds: bool = False
    sets: dict[str, tuple[str, bool]] = field(default_factory=dict)

    def frameworks(self) -> list[str]:
        """Return those that will be imported. Where functions alone import several, one is chosen
        when it runs."""
        certain = [name for name in _MODULES if name in self.names]
        maybe = [name for name in _MODULES if name in self.inside]
        return certain or ([] if {"torch", "tensorflow"} <= {*maybe} else maybe)


@lru_cache(maxsize=8)
def _scan(script: Path, changed: int) -> _Found:
    """changed: when it was, so that an edited file is read again."""
    del changed
    found = _Found()
    waiting = [script]
    seen: set[Path] = set()
    while waiting and len(seen) < _MOST_FILES:
        file = waiting.pop()
        seen.add(file)
        tree = _parse(file)
        if file == script:
            found.sets = _sets(tree)
        outside = {id(node) for node in _outside_functions(tree)}
        for node in ast.walk(tree):
            found.seeds = found.seeds or _seeds(node)
            for name in _imports(node, script.parent, file.parent):
                if isinstance(name, Path):
                    waiting += [name] if name not in seen else []
                else:
                    (found.names if id(node) in outside else found.inside).add(name)
    return found


def _outside_functions(node: ast.AST) -> Iterator[ast.AST]:
    yield node
    if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
        for child in ast.iter_child_nodes(node):
            yield from _outside_functions(child)


def _parse(file: Path) -> ast.Module:
    """An empty module where it cannot be read: the rank says why."""
    try:
        if file.stat().st_size > _LONGEST_FILE:
            return ast.Module([], [])
        return ast.parse(file.read_bytes())
    except (OSError, SyntaxError, ValueError, RecursionError):
        return ast.Module([], [])


def _imports(node: ast.AST, top: Path, here: Path) -> Iterator[str | Path]:
    """Yield packages, and the files of modules that lie beside the script."""
    if isinstance(node, ast.Import):
        for alias in node.names:
            yield from _named(top, alias.name)
    elif isinstance(node, ast.ImportFrom):
        folder = top if node.level == 0 else here
        for _ in range(node.level - 1):
            folder = folder.parent
        base = node.module or ""
        for alias in node.names:
            yield from _named(folder, f"{base}.{alias.name}".strip("."))


def _seeds(node: ast.AST) -> bool:
    name = "set_random_seed"
    return (isinstance(node, ast.Attribute) and node.attr == name) or (
        isinstance(node, ast.alias) and node.name == name
    )


def _named(folder: Path, name: str) -> Iterator[str | Path]:
    parts = name.split(".")
    yield parts[0]
    for count in range(1, len(parts) + 1):
        place = folder.joinpath(*parts[:count])
        for file in (place / "__init__.py", place.with_name(f"{place.name}.py")):
            if file.is_file():
                yield file


def _sets(tree: ast.Module) -> dict[str, tuple[str, bool]]:
    """Return the constants that `os.environ` is given before the first import of a framework, and
    whether that is so where it has the name already: not by `setdefault`, nor under an `if`."""
    found: dict[str, tuple[str, bool]] = {}
    for statement in tree.body:
        nodes = list(ast.walk(statement))
        if any(name in _MODULES for node in nodes for name in _packages(node)):
            break
        for node in nodes:
            name, value, anew = _set(node)
            if name:
                found[name] = value, anew and not isinstance(statement, ast.If)
    return found


def _packages(node: ast.AST) -> list[str]:
    if isinstance(node, ast.Import):
        return [alias.name.partition(".")[0] for alias in node.names]
    return [(node.module or "").partition(".")[0]] if isinstance(node, ast.ImportFrom) else []


def _set(node: ast.AST) -> tuple[str, str, bool]:
    """Read `os.environ["A"] = "b"` and `os.environ.setdefault("A", "b")`; whether it is the
    former."""
    match node:
        case ast.Assign(
            targets=[ast.Subscript(value=place, slice=ast.Constant(value=str(name)))],
            value=ast.Constant(value=str(value)),
        ) if _is_environ(place):
            return name, value, True
        case ast.Call(
            func=ast.Attribute(value=place, attr="setdefault"),
            args=[ast.Constant(value=str(name)), ast.Constant(value=str(value))],
        ) if _is_environ(place):
            return name, value, False
    return "", "", False


def _is_environ(node: ast.AST) -> bool:
    return ast.unparse(node) in ("os.environ", "environ")
