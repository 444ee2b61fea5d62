"""No two modules need each other to be imported first."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator
from graphlib import CycleError, TopologicalSorter
from itertools import pairwise
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def named(path: Path) -> str:
    parts = path.relative_to(ROOT).with_suffix("").parts
    parts = ("dream", *parts) if parts[0] == "adapters" else parts
    return ".".join(parts).removesuffix(".__init__")


def imported(body: Iterable[ast.stmt]) -> Iterator[str]:
    """What is imported as the module is, most of it in two readings: a module, or a name in one."""
    for node in body:
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            for alias in node.names:
                yield f"{node.module}.{alias.name}"
                yield node.module
        elif isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            yield from imported(node.orelse)
        elif isinstance(node, ast.If | ast.Try | ast.With):
            yield from imported(node.body)


def needed(sources: dict[str, str]) -> dict[str, set[str]]:
    """By module, the modules that it imports; of `from package import module` the package is none:
    it is there by then, if only in part."""
    found: dict[str, set[str]] = {}
    for module, source in sources.items():
        names = [*imported(ast.parse(source).body)]
        pairs = pairwise(names)
        packages = {b for a, b in pairs if a in sources and a.rpartition(".")[0] == b}
        found[module] = {n for n in names if n in sources and n != module} - packages
    return found


def circle(sources: dict[str, str]) -> list[str]:
    try:
        TopologicalSorter(needed(sources)).prepare()
    except CycleError as error:
        return list(error.args[1])
    return []


def test_imports_form_no_circle() -> None:
    paths = [*(ROOT / "dream").rglob("*.py"), *(ROOT / "adapters").rglob("*.py")]
    sources = {named(path): path.read_text() for path in paths}
    assert len(sources) > 100
    assert not circle(sources)


@pytest.mark.parametrize("first", ["import b", "from b import x", "from p import b as other"])
def test_a_circle_is_seen(first: str) -> None:
    second = "p.b" if "from p" in first else "b"
    assert circle({"p": "", "p.a": first, second: "from p import a"})
    assert not circle({"p": "", "p.a": first, second: "from p import c"})
