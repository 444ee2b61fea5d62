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
    """Return the ids of parameters that `forward` names, and methods of the module that it names:
    those of its parts, and its own."""
    return {id(found) for found in _read(module, "forward", set())}


def _read(module: nn.Module, method: str, seen: set[str]) -> Iterator[nn.Parameter]:
    seen.add(method)
    code = getattr(getattr(type(module), method, None), "__code__", None)
    for names in _chains(code) if isinstance(code, CodeType) else ():
        found = _resolved(module, names)
        if found is not None:
            yield found
        elif names[0] not in seen and callable(getattr(type(module), names[0], None)):
            yield from _read(module, names[0], seen)


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


def _resolved(module: nn.Module, names: list[str]) -> nn.Parameter | None:
    """Return the parameter that a chain of names comes to, if it is one of a part."""
    at: object = module
    for name in names:
        held = tables(at)[:2] if isinstance(at, nn.Module) else ()
        at = next((each[name] for each in held if name in each), None)
        if isinstance(at, nn.Parameter):
            return at
    return None
