"""`dream env` for people: a table, and what to paste into a bug report."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from .facts import Facts
from .tries import Tries, Try


def document(facts: Facts, tries: Tries) -> Facts:
    """For programs: works is null where it was not tried."""
    reductions = {
        framework: {name: {"works": t.works, "said": t.said} for name, t in each.items()}
        for framework, each in tries.items()
    }
    return {**facts, "reductions": reductions}


def show(facts: Facts, tries: Tries) -> None:
    """Print everything; where it goes into a file, as wide as it wants to be."""
    console = Console()
    console = console if console.is_terminal else Console(width=200)
    table = Table(show_header=False, box=None, pad_edge=False)
    for name, value in _flat(facts):
        table.add_row(Text(name), Text(value))
    for framework, each in tries.items():
        for name, found in each.items():
            style = {True: "green", False: "red", None: "dim"}[found.works]
            table.add_row(Text(f"{framework} {name}"), Text(_word(found), style=style))
    console.print(table)
    console.print("\nFor a bug report, paste this:\n")
    for line in pasted(facts, tries):
        console.print(Text(line), soft_wrap=True)


def pasted(facts: Facts, tries: Tries) -> Iterator[str]:
    """The same in few lines of Markdown, without the home folder's name."""
    versions = facts["versions"]
    home = str(Path.home())
    yield "```"
    yield ", ".join(f"{name} {text}" for name, text in versions.items() if text)
    yield f"Python {facts['python']} on {facts['platform']}"
    gpus = ", ".join(facts["gpus"]) or "no GPU"
    yield f"{facts['cores']} cores ({facts['processor']}), {facts['memory_gib']} GiB, {gpus}"
    yield f"Horovod: {facts['horovod']['why']}".replace(home, "~")
    for framework, each in tries.items():
        words = "; ".join(f"{name} {_word(found)}" for name, found in each.items())
        yield f"{framework}: {words}".replace(home, "~")
    place = facts["cluster"]
    yield f"launcher: {place['launcher']}, variables: {', '.join(place['variables']) or 'none'}"
    if "why" in place:
        yield place["why"]
    yield "```"


def _word(found: Try) -> str:
    if found.works is None:
        return "not tried"
    return f"works ({found.said})" if found.works else f"no: {found.said}"


def _flat(facts: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, str]]:
    for name, value in facts.items():
        label = prefix + name.replace("_", " ")
        if isinstance(value, Mapping):
            yield from _flat(value, f"{label} ")
        elif isinstance(value, list):
            yield label, ", ".join(map(str, value)) or "none"
        else:
            yield label, "none" if value is None else str(value)
