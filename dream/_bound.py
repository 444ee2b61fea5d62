"""Where functions are bound by their names: a script that has imported one by its name calls that,
whatever becomes of the module it came from."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from types import ModuleType
from typing import Any

Bound = list[tuple[ModuleType, str]]


def bound_to(functions: Iterable[Any], home: str) -> dict[int, Bound]:
    """Return the (module, name) that stand for each function, by the function's id, in the script
    and its libraries. home: the package they are from, which keeps its own.

    All of them in one pass: there are some hundred thousand names.
    """
    found: dict[int, Bound] = {id(function): [] for function in functions}
    for package, module in [*sys.modules.items()]:
        if not isinstance(module, ModuleType) or package.partition(".")[0] in (home, "dream"):
            continue
        names = vars(module).copy()  # another thread may import meanwhile
        if not found.keys().isdisjoint(map(id, names.values())):
            for name, value in names.items():
                if id(value) in found:
                    found[id(value)].append((module, name))
    return found
