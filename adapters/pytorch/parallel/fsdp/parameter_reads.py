"""Which parameters of its parts a module's `forward` reads by name, as a head that is tied to an
embedding does (`F.linear(x, self.embedding.weight)`): there is all of one only where the part is
gathered with the module that reads it, and not as the part is called."""

from __future__ import annotations

import dis
from collections.abc import Iterator
from types import CodeType

from torch import nn

from dream.adapters.pytorch.private import tables


def read_by_name(module: nn.Module) -> set[int]:
    """Return the ids of parameters that `forward` names, and methods that it names, of the module
    and of its parts (`self.head.logits(x)`): those of its parts, and its own."""
    return {id(found) for found in _read(module, "forward", set())}


def _read(module: nn.Module, method: str, seen: set[tuple[int, str]]) -> Iterator[nn.Parameter]:
    seen.add((id(module), method))
    code = getattr(getattr(type(module), method, None), "__code__", None)
    for names in _chains(code) if isinstance(code, CodeType) else ():
        found, rest = _resolved(module, names)
        if isinstance(found, nn.Parameter):
            yield found
        elif rest and _is_own_method(found, rest) and (id(found), rest) not in seen:
            yield from _read(found, rest, seen)


def _is_own_method(module: nn.Module, name: str) -> bool:
    """Tell what is called past what gathers a module's parameters: its calls come to `forward`."""
    inherited = hasattr(nn.Module, name) and name != "forward"
    return not inherited and callable(getattr(type(module), name, None))


def _chains(code: CodeType, first: tuple[str, ...] = ()) -> Iterator[list[str]]:
    """Find `self.a.b` in a method: ["a", "b"]. first: what the method calls itself, of a lambda or
    a comprehension in it."""
    first = first or code.co_varnames[:1]
    names: list[str] | None = None
    for each in dis.get_instructions(code):
        loaded = each.argval[-1:] if isinstance(each.argval, tuple) else (each.argval,)
        if names is not None and each.opname in ("LOAD_ATTR", "LOAD_METHOD"):
            names.append(each.argval)
            continue
        if names:
            yield names
        is_self = each.opname.startswith(("LOAD_FAST", "LOAD_DEREF")) and loaded == first
        names = [] if is_self else None
    for inner in code.co_consts:  # a comprehension, a lambda
        if isinstance(inner, CodeType):
            yield from _chains(inner, first)


def _resolved(module: nn.Module, names: list[str]) -> tuple[nn.Module | nn.Parameter, str]:
    """Return the parameter that a chain of names comes to, of a part or its own; or else the last
    module on the way, and the name that follows."""
    at = module
    for name in names:
        found = next((each[name] for each in tables(at)[:2] if name in each), None)
        if isinstance(found, nn.Parameter):
            return found, ""
        if not isinstance(found, nn.Module):
            return at, name
        at = found
    return at, ""
