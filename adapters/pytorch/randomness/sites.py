"""Which draws of a loop are for the rows of its batch: told by where in the script they stand, and
by what they are drawn for."""

from __future__ import annotations

import dis
import re
import sys
from collections.abc import Sequence
from types import CodeType, FrameType
from typing import final
from zlib import crc32

from dream.adapters.pytorch.randomness.words import (
    LOADS,
    STORES,
    loops_in,
    names_in,
    variables_of,
)

_FRAMES = 3
"""Functions of the script, each called by the next, that tell one place in it from another."""
_STEPS = 16
"""Lines of the script that are looked at for what a call is given."""
_LENGTHS = {"len", "size", "shape"}
_ATTRIBUTES = {"LOAD_ATTR", "LOAD_METHOD"}
_SIZED = {"randn", "rand", "randperm"}
"""What is given a size first."""
_ORDERS = "torch.utils.data."
Site = tuple[CodeType, int]
"""A call in the script: its code, and the place in it."""


def site() -> Site:
    """The script's own call that runs now: past dream's functions and torch's."""
    frame = _frame()
    return frame.f_code, frame.f_lasti


def place_in_script() -> int:
    """Return a number for where in the script the call stands that runs now, and the function that
    it is in was called from: alike on every rank."""
    frame: FrameType | None = _frame()
    place, left = 0, _FRAMES
    while frame is not None and left:
        if not is_library(frame.f_globals.get("__name__")):
            at = f"{frame.f_code.co_qualname} {frame.f_code.co_firstlineno} {frame.f_lasti}"
            place, left = crc32(at.encode(), place), left - 1
        frame = frame.f_back
    return place


def _frame() -> FrameType:
    frame = sys._getframe(1)
    while frame.f_back is not None and is_library(frame.f_globals.get("__name__")):
        frame = frame.f_back
    return frame


def orders_data() -> bool:
    """Whether torch's own samplers and splits draw now, which the script's call runs: an order of
    a dataset's samples, however many these are, is nobody's row."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and is_library(name := frame.f_globals.get("__name__")):
        if str(name).startswith(_ORDERS):
            return True
        frame = frame.f_back
    return False


def given_a_length(*, of_rows: bool = False) -> bool:
    """Whether the script's call that runs now has a length among what it is given, as `len(x)`.
    of_rows: none of another dim than the first."""
    done, call = _instructions(_frame())
    inside = [each for each in done if call is not None and _within(each, call)]
    return any(
        each.argval in _LENGTHS
        and (not of_rows or each.argval == "len" or _is_rows(inside[at : at + 3]))
        for at, each in enumerate(inside)
    )


def worked_out_of_a_length(*, of_rows: bool = False) -> bool:
    """Whether what the script's call is given that runs now was worked out of a length, in the call
    or, step by step, in the same function. of_rows: as of `given_a_length`."""
    done, call = _instructions(_frame())
    spans = [] if call is None else [call]
    for at in spans:
        spans += [each for each in _made_in(done, at) if each not in spans and len(spans) < _STEPS]
    return any(
        x.argval in _LENGTHS
        and any(_within(x, at) for at in spans)
        and (not of_rows or x.argval == "len" or _is_rows(done[index : index + 3]))
        for index, x in enumerate(done)
    )


def states(number: int) -> bool:
    """Whether the script's call that runs now has this number written in it."""
    done, call = _instructions(_frame())
    return any(
        type(x.argval) in (int, slice) and repr(number) in re.findall(r"\d+", repr(x.argval))
        for x in done
        if call is not None and x.opname.startswith("LOAD_") and _within(x, call)
    )


def _is_fixed(size: int) -> bool:
    """Whether the rows that the script's call that runs now asks for, `size`, are as many for every
    batch: a number that is written there, or a variable that is set outside loops, of no length."""
    frame = _frame()
    done, call = _instructions(frame)
    inside = [each for each in done if call is not None and _within(each, call)]
    words = {each.argval for each in inside[:3] if isinstance(each.argval, str)}
    worked_out = any(each.opname.startswith("BINARY_OP") for each in inside)
    if not size or not words & _SIZED or (worked_out and given_a_length()):
        return False
    given = [x for x in inside[1:] if x.opname.startswith("LOAD_") and x.opname not in _ATTRIBUTES]
    if not given or given[0].opname == "LOAD_CONST":
        return bool(given) and type(given[0].argval) is int and given[0].argval == size
    name = given[0].argval[0] if isinstance(given[0].argval, tuple) else given[0].argval
    scopes = (variables_of(frame), frame.f_globals)
    value = next((scope[name] for scope in scopes if name in scope), None)
    if type(value) is not int or value != size:
        return False
    codes = _codes_that_set(name, frame)
    return bool(codes) and all(_is_set_once(name, each) for each in codes)


def _codes_that_set(name: str, frame: FrameType) -> list[CodeType]:
    """Return the code in which a variable is set that a function names; none where it is given to
    the function, or that code does not run."""
    own = frame.f_code
    if name in own.co_varnames or name in own.co_cellvars:
        return [] if name in own.co_varnames[: own.co_argcount + own.co_kwonlyargcount] else [own]
    outer: FrameType | None = frame
    while outer is not None:
        code = outer.f_code
        around = variables_of(outer) is outer.f_globals is frame.f_globals
        if name in code.co_cellvars if name in own.co_freevars else around:
            given = name in code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]
            return [] if given else [own, code]
        outer = outer.f_back
    return []


def _is_set_once(name: str, code: CodeType) -> bool:
    done = [*dis.get_instructions(code)]
    loops = loops_in(done)
    for each in done:
        if each.positions is not None and name in names_in(each, STORES):
            if any(first <= each.offset <= last for first, last in loops):
                return False
            line = dis.Positions(each.positions.lineno, each.positions.lineno, 0, 1 << 20)
            if any(x.argval in _LENGTHS and _within(x, line) for x in done):
                return False
    return True


def _is_rows(parts: Sequence[dis.Instruction]) -> bool:
    """Whether `x.shape` or `x.size`, and what comes behind, take the first dim, or leave all."""
    if len(parts) < 3 or not parts[1].opname.startswith("LOAD_"):
        return True
    size, behind, last = parts
    if behind.opname == "LOAD_CONST":
        return behind.argval == 0 or isinstance(behind.argval, str)  # as of a device
    return size.argval == "shape" and not last.opname.startswith("BINARY_")


def _instructions(frame: FrameType) -> tuple[list[dis.Instruction], dis.Positions | None]:
    """Return those of a frame's code, and where in the source the call stands that it is in."""
    done = [*dis.get_instructions(frame.f_code)]
    past = [each.positions for each in done if each.offset <= frame.f_lasti]
    call = past[-1] if past else None
    return done, None if call is None or call.lineno is None else call


def _multiplies_rows(rows: int) -> bool:
    """Whether the script's call that runs now has a product with a length, or with a variable that
    is as many as a share's rows, among what it is given."""
    frame = _frame()
    done, call = _instructions(frame)
    if call is None:
        return False
    spans = [call, *_made_in(done, call)]
    products = [
        each.positions
        for each in done
        if each.argrepr == "*" and any(_within(each, s) for s in spans)
    ]
    inside = {each.argval for each in done for at in products if at and _within(each, at)}
    names = {name for name in inside if isinstance(name, str)}
    own = variables_of(frame)
    values = (own.get(name, frame.f_globals.get(name)) for name in names)
    return bool(names & _LENGTHS) or any(type(x) is int and x == rows > 1 for x in values)


def _made_in(done: list[dis.Instruction], call: dis.Positions) -> list[dis.Positions]:
    """Where in the source the variables are set that a call is given."""
    given = {name for x in done if _within(x, call) for name in names_in(x, LOADS)}
    found = []
    for each in done:
        line = None if each.positions is None else each.positions.lineno
        if line and not given.isdisjoint(names_in(each, STORES)):
            found.append(dis.Positions(line, line, 0, 1 << 20))
    return found


def _within(part: dis.Instruction, call: dis.Positions) -> bool:
    def ends(at: dis.Positions) -> tuple[tuple[int, int], tuple[int, int]]:
        return (at.lineno or 0, at.col_offset or 0), (at.end_lineno or 0, at.end_col_offset or 0)

    if part.positions is None:
        return False
    return ends(call)[0] <= ends(part.positions)[0] and ends(part.positions)[1] <= ends(call)[1]


def is_library(name: object) -> bool:
    return isinstance(name, str) and name.partition(".")[0] in ("dream", "torch")


@final
class Sites:
    """What is known of a loop's draws. A size that follows the batch's, from one batch to the next,
    was read from it; where a size could be a parameter's too, that is what tells."""

    def __init__(self) -> None:
        self._of_batch: set[Site] = set()
        self._of_others: set[Site] = set()
        self._of_parameters: set[Site] = set()
        self._of_lengths: dict[Site, bool] = {}
        self._batch, self._times = 0, dict[Site, int]()
        self._several: dict[Site, tuple[int, int]] = {}
        self.several = False
        """Whether a draw has made some rows for each of the batch's, as two sizes tell."""
        self.multiplied = False
        """Whether one seems to, by the script's own words."""

    def of_batch(self, shape: Sequence[int], rows: int, *, doubtful: bool) -> bool | None:
        """Whether a draw here is for the batch's rows; None where that cannot be told yet.

        doubtful: the shape could be another thing's.
        """
        at = site()
        if shape[0] != rows:
            if at not in self._of_batch:
                self._of_others.add(at)
            self._look_for_several(at, shape[0], rows)
            return False
        if at in self._of_batch:
            return True
        if at in self._of_others:
            return False
        if _is_fixed(rows):
            self._of_others.add(at)
            return False
        if doubtful:
            return None
        self._of_batch.add(at)
        return True

    def times(self, batch: int) -> int:
        """Count the draws here since a batch was handed out. batch: its number."""
        if batch != self._batch:
            self._batch = batch
            self._times.clear()
        at = site()
        self._times[at] = times = self._times.get(at, 0) + 1
        return times

    def reads_joined(self, length: int) -> bool:
        """Whether the script's call is given a length of rows, as of some that were joined. On a
        rank without rows that is what it was given before."""
        at = site()
        if at not in self._of_lengths and length:
            self._of_lengths[at] = given_a_length(of_rows=True)
        return self._of_lengths.get(at, False)

    def _look_for_several(self, at: Site, size: int, rows: int) -> None:
        each, rest = divmod(size, rows) if rows else (0, 1)
        if each > 1 and not rest:
            if at not in self._several:
                self.multiplied |= _multiplies_rows(rows)
            first, before = self._several.setdefault(at, (rows, each))
            self.several |= first != rows and before == each

    def guess(self, shape: Sequence[int]) -> bool:
        """Whether a draw here, of a shape that a parameter has, is for the batch's rows as long as
        nothing tells: a matrix is not, nor what is drawn where matrices are."""
        at = site()
        if len(shape) > 1:
            self._of_parameters.add(at)
        return at not in self._of_parameters
