"""The tables of `dream strategies`."""

from __future__ import annotations

from collections.abc import Iterable

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from dream.strategies import spec as specs
from dream.strategies.spec import (
    COMMON,
    FRAMEWORKS,
    RANDOMNESS,
    SEED,
    SPECS,
    Framework,
    Option,
    Spec,
)
from dream.tools import support


def strategies(console: Console) -> None:
    """Every strategy, with what works of it here and now."""
    table = Table("strategy", "meaning, and what works here", box=None, pad_edge=False)
    table.columns[0].no_wrap = True  # a name that is cut cannot be typed
    for spec in SPECS.values():
        table.add_row(spec.name, f"{spec.summary}; {_processes(spec)}")
        for framework in FRAMEWORKS:
            table.add_row(f"  {framework}", escape(_cell(spec, framework)))
    console.print(table)
    console.print("\nOptions of one: dream strategies NAME", highlight=False)


def strategy(console: Console, name: str) -> None:
    """One strategy's options."""
    spec = specs.find(name)
    console.print(f"{spec.name}: {spec.summary}", highlight=False)
    for framework in FRAMEWORKS:
        console.print(f"  {framework}: {escape(_cell(spec, framework))}", highlight=False)
    table = Table("option", "type", "default", "where", "meaning", box=None, pad_edge=False)
    table.columns[0].no_wrap = True
    for option in (*COMMON.values(), SEED, RANDOMNESS, *spec.options):
        table.add_row(*_row(option))
    console.print()
    console.print(table)


def _processes(spec: Spec) -> str:
    return "one process" if not spec.several else "one process or many"


def _cell(spec: Spec, framework: Framework) -> str:
    """What runs, else what is in the way."""
    blocked = support.obstacle(spec, framework, "auto")
    if blocked:
        return f"no: {blocked}"
    reductions = spec.reductions[framework]
    if not reductions:
        return "yes"
    words = ((name, support.obstacle(spec, framework, name)) for name in reductions)
    return "yes: " + ", ".join(f"{name} ({why})" if why else name for name, why in words)


def _row(option: Option) -> Iterable[str]:
    where = "" if option.frameworks == FRAMEWORKS else ", ".join(option.frameworks)
    return option.name, option.kind.__name__, str(option.default), where, option.help
