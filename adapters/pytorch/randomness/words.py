"""What the script's own text says of a place in it: which names the call there is given, and which
of them the loops around it bind. It is the same on every rank, as sizes are not."""

from __future__ import annotations

import dis
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from inspect import CO_OPTIMIZED
from itertools import islice
from types import CodeType, FrameType
from typing import Any, NamedTuple, final

_LEVELS, _MOST = 3, 16
STORES = ("STORE_FAST", "STORE_NAME", "STORE_GLOBAL", "STORE_DEREF")
LOADS = ("LOAD_FAST", "LOAD_NAME", "LOAD_GLOBAL", "LOAD_DEREF", "LOAD_CLASSDEREF")
_KNOWN = 4096
"""Places whose words are known: a script may make its code anew for ever."""
_NOBODYS = 3
"""References to what `f_locals` gave: the frame's, a variable's, an argument's."""
Loop = tuple[int, int]
Places = dict[int, tuple[CodeType, int]]
"""Where each of some frames stands, by the frame's id."""


@final
class Words(NamedTuple):
    """The names around a call in a script, by where they were set.

    given: names in the call, then those in the lines that these were set in, and so on, but in
    no loop that the call is not in, whose names another thing may have had. bound:
    names that loops around the call have set in this turn, the innermost loop's first, of each the
    last set first.
    free: names that no loop sets. loop: the innermost one around the call.
    """

    given: tuple[tuple[str, ...], ...]
    bound: tuple[tuple[str, ...], ...]
    free: tuple[str, ...]
    loop: Loop | None


@lru_cache(_KNOWN)
def words_at(code: CodeType, at: int) -> Words:
    """Read the words around an instruction."""
    done = [*dis.get_instructions(code)]
    loops = loops_in(done)
    stores = [(name, each) for each in done for name in names_in(each, STORES)]
    around: dict[Loop, dict[str, int]] = {loop: {} for loop in loops if _within(at, loop)}
    looped: set[str] = set()
    for name, each in stores:
        own = next((loop for loop in loops if _within(each.offset, loop)), None)
        if own is not None:
            looped.add(name)
        if own in around and each.offset <= at:  # else it is left of the turn before
            around[own][name] = each.offset
    bound = tuple(tuple(sorted(names, key=lambda x: -names[x])) for names in around.values())
    free = dict.fromkeys((*code.co_varnames, *code.co_cellvars, *code.co_freevars))
    free |= dict.fromkeys(name for name, _ in stores)
    own_names = tuple(name for name in free if name not in looped)
    around_it = [
        (name, each)
        for name, each in stores
        if _within(at, next((x for x in loops if _within(each.offset, x)), (0, at)))
    ]
    return Words(tuple(_given(done, around_it, at)), bound, own_names, next(iter(around), None))


def variables_of(frame: FrameType) -> Mapping[str, Any]:
    """Return a frame's variables: a function's as a copy.

    Before Python 3.13 a function keeps what `f_locals` has given until it ends, and with it what
    the script has deleted since, as a batch or a graph. So that is emptied, unless the script has
    it too, as `locals()` gives it.
    """
    own = frame.f_locals
    if not frame.f_code.co_flags & CO_OPTIMIZED:
        return own
    copy = {**own}
    if type(own) is dict and sys.getrefcount(own) <= _NOBODYS:
        own.clear()
    return copy


def places_of(frames: Iterable[FrameType]) -> Places:
    """Return where these, each called by the next, stand now: by how many have called each, as one
    that is called later may have the id of one that has ended, or not, on another rank."""
    at = next(iter(listed := [*frames]), None)
    calling: list[FrameType] = []
    while at is not None:
        calling.append(at)
        at = at.f_back
    depths = {id(frame): depth for depth, frame in enumerate(reversed(calling))}
    return {depths[id(frame)]: (frame.f_code, frame.f_lasti) for frame in listed}


def goes_on(then: Places, now: Places) -> bool:
    """Whether the loop that was run then is run now, in the same turn of what is around it."""
    for frame, (code, at) in now.items():
        was = then.get(frame)
        if was is not None and was[0] is code:
            loop = words_at(*was).loop
            if loop is not None:
                return _within(at, loop)
    return False


def loops_in(done: Sequence[dis.Instruction]) -> list[Loop]:
    """Return where the loops begin and end, those inside others first.

    From Python 3.12 on, what is done about an error lies behind all else: its jumps back to where
    a `with` or a `try` goes on, or its loop, end no loop.
    """
    turns = {each.offset: each.argval - 1 for each in done if each.opname == "FOR_ITER"}
    ends = {**turns}
    errors = (each.offset for each in done if each.opname == "PUSH_EXC_INFO")
    behind = next(errors, sys.maxsize) if sys.version_info >= (3, 12) else sys.maxsize
    for each in done:
        if not _ends_a_turn(each) or each.argval in turns or each.argval < behind <= each.offset:
            continue
        ends[each.argval] = max(each.offset, ends.get(each.argval, 0))
    return sorted(ends.items(), key=lambda loop: loop[1] - loop[0])


def _ends_a_turn(each: dis.Instruction) -> bool:
    return "BACKWARD" in each.opname and "NO_INTERRUPT" not in each.opname  # as `yield from` does


def _within(at: int, loop: Loop) -> bool:
    return loop[0] <= at <= loop[1]


def names_in(each: dis.Instruction, kinds: tuple[str, ...]) -> tuple[str, ...]:
    """Return those that an instruction loads, or stores; some do two at once."""
    if not any(kind in each.opname for kind in kinds):
        return ()
    if not isinstance(each.argval, tuple):
        return (each.argval,)
    verbs = (word for word in each.opname.split("_") if word in ("LOAD", "STORE"))
    return tuple(
        name for verb, name in zip(verbs, each.argval, strict=True) if f"{verb}_FAST" in kinds
    )


def _given(
    done: Sequence[dis.Instruction], stores: Sequence[tuple[str, dis.Instruction]], at: int
) -> Iterator[tuple[str, ...]]:
    past = [each.positions for each in done if each.offset <= at]
    call = past[-1] if past else None
    if call is None or call.lineno is None:
        return
    found = {x: None for each in done if _inside(each, call) for x in names_in(each, LOADS)}
    seen: dict[str, None] = {}
    for _ in range(_LEVELS):
        level = tuple(islice((name for name in found if name not in seen), _MOST))
        if not level:
            return
        yield level
        seen |= dict.fromkeys(level)
        lines = {_line(each) for name, each in stores if name in level}
        found = {x: None for each in done if _line(each) in lines for x in names_in(each, LOADS)}


def _line(each: dis.Instruction) -> int | None:
    return None if each.positions is None else each.positions.lineno


def _inside(part: dis.Instruction, call: dis.Positions) -> bool:
    own = part.positions
    if own is None or own.lineno is None or own.end_lineno is None or call.end_lineno is None:
        return False
    begin = (call.lineno or 0, call.col_offset or 0)
    end = (call.end_lineno, call.end_col_offset or 0)
    return begin <= (own.lineno, own.col_offset or 0) and (
        (own.end_lineno, own.end_col_offset or 0) <= end
    )
