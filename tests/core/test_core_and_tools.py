"""Tools stand on top of the core: nothing below imports them."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from dream import _observers
from dream.strategies import registry
from dream.tools import frameworks

ROOT = Path(__file__).parents[2]
COMMAND_LINE = {"dream/cli.py", "dream/_commands.py"}
"""They import a tool where its command is used."""
PUBLIC = {
    "dream/__init__.py": {f"dream.tools.port_check.{n}" for n in ("check", "check.port_check")}
}
"""`dream.port_check`, loaded when it is asked for."""


def imported(source: str) -> Iterator[str]:
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        if isinstance(node, ast.ImportFrom) and node.module:
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def tools_in(source: str) -> set[str]:
    return {name for name in imported(source) if f"{name}.".startswith("dream.tools.")}


def below_the_tools() -> list[str]:
    files = [*(ROOT / "dream").rglob("*.py"), *(ROOT / "adapters").rglob("*.py")]
    paths = [path.relative_to(ROOT) for path in files]
    return [str(p) for p in paths if "tools" not in p.parts and "tools.py" not in p.parts]


def test_core_and_adapters_import_no_tool() -> None:
    files = set(below_the_tools()) - COMMAND_LINE
    assert len(files) > 100
    found = {
        file: bad
        for file in sorted(files)
        if (bad := tools_in((ROOT / file).read_text()) - PUBLIC.get(file, set()))
    }
    assert not found


@pytest.mark.parametrize(
    "source",
    [
        "from dream import tools",
        "from dream.tools import record",
        "import dream.tools.verify.main",
        "def f():\n    from dream.tools.compare.cells import Cell",
    ],
)
def test_each_form_of_import_is_seen(source: str) -> None:
    assert tools_in(source)


def test_a_like_name_is_no_tool() -> None:
    assert not tools_in("from dream.toolset import x\nimport dream.adapters.keras.tools.verify")


def defined(module: str) -> set[str]:
    place = ROOT / module.replace("dream.adapters", "adapters").replace(".", "/")
    tree = ast.parse(place.with_suffix(".py").read_text())
    return {node.name for node in tree.body if isinstance(node, (ast.FunctionDef, ast.ClassDef))}


@pytest.mark.parametrize("module", [frameworks, registry])
def test_what_is_loaded_on_use_is_there(module: ModuleType) -> None:
    tables = [t for name, t in vars(module).items() if name[0].isupper() and isinstance(t, dict)]
    places = {place for table in tables for place in table.values() if ":" in place}
    assert len(places) > 10
    for place in places:
        file, _, name = place.partition(":")
        assert name in defined(file), place


class Counting(_observers.Observer):
    """Made from words, as a process is asked to have it."""

    def __init__(self, words: str) -> None:
        self.words = words
        self.told: list[str] = []

    def entering(self, adapter: Any, framework: str, strategy: str) -> None:
        self.told.append(strategy)

    def entering_keras(self) -> None:
        self.told.append("keras")

    def observed(self, step: Callable[..., Any], model: Any) -> Callable[..., Any]:
        return step

    def finish(self) -> None:
        self.told.append("finish")


def test_an_observer_is_made_from_what_a_process_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_observers, "registered", [])
    assert not _observers.draws_alike()
    _observers.register(f'{__name__}:Counting {{"steps": 3}}')
    (observer,) = _observers.registered
    _observers.finish()
    assert (observer.words, observer.told) == ('{"steps": 3}', ["finish"])
