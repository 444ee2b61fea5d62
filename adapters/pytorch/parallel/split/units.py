"""Which modules of a model are gathered at a time when it is sharded."""

from __future__ import annotations

from collections import Counter

from torch import nn


def units_of(module: nn.Module) -> list[nn.Module]:
    """The parts that are gathered by themselves: blocks of repeated layers where there are any,
    else the direct children. What is in none of them is gathered with the whole.

    A part that shares a parameter with another one is in none, since it is needed in both places.
    """
    found = _repeated(module) or _children(module)
    return [unit for unit in found if not _shares(unit, found, module)]


def callable_itself(module: nn.Module) -> bool:
    """Whether the module has a forward pass: lists and dicts of modules have none."""
    return type(module).forward is not nn.Module.forward


def _repeated(module: nn.Module) -> list[nn.Module]:
    """The blocks in lists and sequences of which at least two have several layers of a kind."""
    found: list[nn.Module] = []
    for child in module.children():
        blocks = [part for part in child.children() if _has_parameters(part)]
        kinds = Counter(type(part) for part in blocks if any(part.children()))
        listed = isinstance(child, (nn.ModuleList, nn.Sequential))
        if listed and any(count > 1 for count in kinds.values()):
            found += blocks
        elif not (listed or _has_own(child)):
            found += _repeated(child)
    return found


def _children(module: nn.Module) -> list[nn.Module]:
    found: list[nn.Module] = []
    for child in module.children():
        if _has_parameters(child):
            found += [child] if callable_itself(child) else _children(child)
    return found


def _shares(unit: nn.Module, units: list[nn.Module], module: nn.Module) -> bool:
    own = {id(parameter) for parameter in unit.parameters()}
    inside = {id(part) for part in unit.modules()}
    outside = (part for part in module.modules() if id(part) not in inside)
    return any(id(p) in own for part in outside for p in part.parameters(recurse=False)) or any(
        unit is not other and id(unit) in {id(part) for part in other.modules()} for other in units
    )


def _has_parameters(module: nn.Module) -> bool:
    return next(module.parameters(), None) is not None


def _has_own(module: nn.Module) -> bool:
    return next(module.parameters(recurse=False), None) is not None
