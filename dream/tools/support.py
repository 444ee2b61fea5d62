"""What works on this machine, found without importing a framework; and the tables of
`dream strategies`."""

from __future__ import annotations

from collections.abc import Iterable
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from dream.shared_memory import status
from dream.strategies import registry
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

HOROVOD_STATUS = "dream.adapters.horovod.build:status"
_DISTRIBUTIONS = {
    "dream-systems": ("dream-systems",),
    "torch": ("torch",),
    "tensorflow": ("tensorflow-cpu", "tensorflow"),
    "keras": ("keras",),
    "horovod": ("horovod",),
    "numpy": ("numpy",),
    "cloudpickle": ("cloudpickle",),
}


def installed(framework: Framework) -> bool:
    return find_spec(framework) is not None


def gpus() -> int:
    """NVIDIA devices that the driver shows."""
    return len(list(Path("/proc/driver/nvidia/gpus").glob("*")))


def obstacle(spec: Spec, framework: Framework, reduction: str) -> str:
    """Why a strategy cannot run with a reduction here and now, and what to do; empty where it
    can. reduction "auto" asks for the strategy alone."""
    if (framework, spec.name) not in registry.STRATEGIES:
        return "not in this framework"
    if not installed(framework):
        return f"pip install 'dream-systems[{framework}]'"
    if reduction == "nccl" and not gpus():
        return "needs GPUs"
    if reduction in ("shared_memory", "hierarchical"):
        return status().why
    if reduction == "horovod" or (spec.reductions[framework] == ("horovod",)):
        return "" if horovod_status().serves(framework) else "dream build-horovod"
    return ""


def horovod_status() -> Any:
    """The ring's BuildStatus."""
    return registry.load(HOROVOD_STATUS)()


def versions() -> dict[str, str | None]:
    """Of what figures depend on; None where it is not installed."""
    return {name: _version(names) for name, names in _DISTRIBUTIONS.items()}


def _version(distributions: tuple[str, ...]) -> str | None:
    for name in distributions:
        try:
            return version(name)
        except PackageNotFoundError:
            continue
    return None


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
    blocked = obstacle(spec, framework, "auto")
    if blocked:
        return f"no: {blocked}"
    reductions = spec.reductions[framework]
    if not reductions:
        return "yes"
    words = ((name, obstacle(spec, framework, name)) for name in reductions)
    return "yes: " + ", ".join(f"{name} ({why})" if why else name for name, why in words)


def _row(option: Option) -> Iterable[str]:
    where = "" if option.frameworks == FRAMEWORKS else ", ".join(option.frameworks)
    kinds = " or ".join([option.kind.__name__, *map(repr, option.words)])
    return option.name, kinds, str(option.default), where, option.help
