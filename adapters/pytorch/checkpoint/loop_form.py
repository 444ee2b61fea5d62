"""How a script comes to its batches, as its frames and iterators show it: `for batch in loader`, in
functions and generators and through `enumerate`, is a form that a fresh process finds again."""

from __future__ import annotations

import dis
import gc
import sysconfig
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from inspect import CO_GENERATOR
from pathlib import PurePath
from types import FrameType, GeneratorType
from typing import Any, final

_KINDS = (enumerate, zip, map, filter)
_ITERATES = ("FOR_ITER", "SEND", "YIELD_FROM")
_STANDARD = sysconfig.get_path("stdlib")
_PACKAGES = {"site-packages", "dist-packages"}
_OWN = __name__.partition(".")[0]


@final
@dataclass(frozen=True, slots=True)
class LoopForm:
    """frames: the script's, from the loop outwards. generators: those of functions that hand a
    loader's batches on. why: what keeps the loop from being found again; empty where nothing
    does. by_hand: whether it is that batches are asked for one by one."""

    frames: tuple[FrameType, ...]
    generators: tuple[FrameType, ...] = ()
    why: str = ""
    by_hand: bool = False

    @property
    def site(self) -> list[list[Any]]:
        """Where in the script it stands: a function and a line in it, for each frame."""
        return [[f.f_code.co_name, f.f_lineno - f.f_code.co_firstlineno] for f in self.frames]


def form_of(frame: FrameType | None) -> LoopForm:
    """Read the loop that asks for a batch. frame: one that is within the loader's own."""
    caller = next((each for each in _outwards(frame) if not _is_own(each)), None)
    frames = tuple(each for each in _outwards(caller) if is_script(each))
    generators = []
    for each in _outwards(caller):
        if _is_own(each):
            continue
        if _operation(each) not in _ITERATES:
            return LoopForm(frames, why="it asks for batches one by one, by next()", by_hand=True)
        if not each.f_code.co_flags & CO_GENERATOR:
            lives = is_script(each)
            why = "" if lives else f"it is in {each.f_globals.get('__name__')}, not in the script"
            return LoopForm(frames, tuple(generators), why)
        generators.append(each)
    return LoopForm(frames, why="nothing of the script's is in it")


def around(iterator: Any, form: LoopForm) -> list[Any]:
    """Find the iterators of C's that hand on its batches, as `enumerate` and `zip` do: they show in
    no frame. It goes through all objects."""
    frames = {id(frame) for frame in form.generators}
    held = [iterator]
    if frames:
        held += [g for g in gc.get_objects()
                 if type(g) is GeneratorType and id(g.gi_frame) in frames]  # fmt: skip
    found: list[Any] = []
    while held:
        referring = gc.get_referrers(*held)
        referring += gc.get_referrers(*[x for x in referring if type(x) is tuple] or [object()])
        known = {id(each) for each in found}
        held = [x for x in referring if _hands_on(x) and id(x) not in known]
        held = [*{id(x): x for x in held}.values()]
        found += held
    return found


def _hands_on(x: Any) -> bool:
    return isinstance(x, _KINDS) or type(x).__module__ == "itertools"


def index_of(count: Any) -> int:
    """Return the number that an `enumerate` gives next."""
    return int(count.__reduce__()[1][1])


def is_script(frame: FrameType) -> bool:
    """Whether it is of the script or of modules beside it: of no library, and not dream's."""
    return not _is_own(frame) and is_script_file(frame.f_code.co_filename)


def is_script_file(file: str) -> bool:
    in_packages = _PACKAGES.intersection(PurePath(file).parts)
    return not (file.startswith(("<frozen", _STANDARD)) or in_packages)


def enclosing_targets(frame: FrameType) -> list[str]:
    """List the variables that the loops step by themselves in whose bodies a frame is."""
    names: list[str] = []
    code = [*dis.get_instructions(frame.f_code)]
    for number, each in enumerate(code):
        if each.opname == "FOR_ITER" and each.offset < frame.f_lasti < each.argval:
            names += _stored(code[number + 1 :])
    return names


def _stored(code: Sequence[dis.Instruction]) -> Iterator[str]:
    """The names that instructions begin with storing in."""
    wanted = 1
    for each in code:
        if each.opname in ("CACHE", "NOP", "EXTENDED_ARG"):
            continue
        if each.opname == "UNPACK_SEQUENCE":
            wanted += int(each.arg or 0) - 1
        elif each.opname.startswith("STORE_"):
            yield from (each.argval,) if isinstance(each.argval, str) else each.argval
            wanted -= 1
        else:
            return
        if wanted <= 0:
            return


def _outwards(frame: FrameType | None) -> Iterator[FrameType]:
    while frame is not None:
        yield frame
        frame = frame.f_back


def _is_own(frame: FrameType) -> bool:
    name = str(frame.f_globals.get("__name__", ""))
    return name == _OWN or name.startswith(f"{_OWN}.")


def _operation(frame: FrameType) -> str:
    code, at = frame.f_code.co_code, frame.f_lasti
    while at > 0 and dis.opname[code[at]] == "CACHE":
        at -= 2
    return dis.opname[code[at]]
