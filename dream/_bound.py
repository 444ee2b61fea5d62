"""Where functions are bound by their names: a script that has imported one by its name calls that,
whatever becomes of the module it came from."""

from __future__ import annotations

import sys
from types import ModuleType
from typing import Any


def bound_to(function: Any, home: str) -> list[tuple[ModuleType, str]]:
    """Return the (module, name) that stand for a function, in the script and its libraries. home:
    the package it is from, which keeps its own."""
    modules = [
        module
        for name, module in [*sys.modules.items()]
        if isinstance(module, ModuleType) and name.partition(".")[0] not in (home, "dream")
    ]
    return [
        (module, name)
        for module in modules
        for name, value in [*vars(module).items()]
        if value is function
    ]
