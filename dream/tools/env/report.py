"""`dream env` for people: a table, and what to paste into a bug report."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from dream.tools.env.facts import Facts
from dream.tools.env.tries import Tries, Try


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
    for name, value in _rows(facts):
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


def _rows(facts: Facts) -> Iterator[tuple[str, str]]:
    """What was found without trying anything."""
    yield "system", f"Python {facts['python']} on {facts['platform']}"
    yield "processor", f"{facts['processor']}, {facts['cores']} cores that we may use"
    yield "memory", f"{facts['memory_gib']} GiB"
    yield "GPUs", ", ".join(facts["gpus"]) or "none"
    for name, version in facts["versions"].items():
        yield name, version or "not installed"
    yield "Horovod's build", facts["horovod"]["why"]
    core = facts["shared_memory"]
    yield "shared memory's core", core["core"] or core["why"] or "none"
    yield "launcher", _launcher(facts["cluster"])
    for name, value in facts["cluster"]["variables"].items():
        yield f"  {name}", value


def _launcher(place: Mapping[str, Any]) -> str:
    if "why" in place:
        return f"{place['launcher']}: {place['why']}"
    if place["world_size"] == 1 and not place["variables"]:
        return "none: this process is alone"
    return f"{place['launcher']}: rank {place['rank']} of {place['world_size']}, by"
