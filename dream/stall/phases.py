"""What part of training a Python stack is in. Frameworks say which of their files are what part:
nothing is asked of a step."""

from __future__ import annotations

import re
import sysconfig
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum, unique
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any


@unique
class Phase(StrEnum):
    """STEP: forward, backward or update, in a call that does them all. OWN: the script's code, and
    what it calls that trains nothing."""

    OWN = "own code"
    INPUT = "input"
    FORWARD = "forward"
    BACKWARD = "backward"
    STEP = "step"
    OPTIMIZER = "optimizer"
    COMMUNICATION = "communication"
    EVALUATION = "evaluation"
    COMPILING = "compiling"
    WRITING = "writing"
    LOADING = "loading"


WORDS = {
    Phase.OWN: "in the script's own code",
    Phase.INPUT: "reading input",
    Phase.FORWARD: "in forward",
    Phase.BACKWARD: "in backward",
    Phase.STEP: "in a training step",
    Phase.OPTIMIZER: "in the optimizer",
    Phase.COMMUNICATION: "in communication",
    Phase.EVALUATION: "in evaluation",
    Phase.COMPILING: "compiling",
    Phase.WRITING: "writing a checkpoint or model",
    Phase.LOADING: "loading a checkpoint or model",
}
_WHEREVER = (Phase.COMPILING, Phase.WRITING, Phase.LOADING)
"""These it is in wherever they stand in the stack; of others the outermost counts, so that a module
that backward calls again is backward."""


@dataclass(frozen=True, slots=True)
class PhaseRule:
    """Code that belongs to one phase of training.

    place: a file, or a folder with a slash at its end. functions: of it; empty for all.
    """

    place: str
    phase: Phase
    functions: tuple[str, ...] = ()

    def matches(self, file: str, function: str) -> bool:
        if self.functions and function not in self.functions:
            return False
        return file.startswith(self.place) if self.place[-1] == "/" else file == self.place


_DREAM = Path(__file__).parents[1]
_rules: dict[PhaseRule, None] = dict.fromkeys(
    [
        PhaseRule(str(_DREAM / "_strategy.py"), Phase.WRITING, ("save",)),
        PhaseRule(str(_DREAM / "_strategy.py"), Phase.LOADING, ("load",)),
        PhaseRule(str(_DREAM / "_strategy.py"), Phase.EVALUATION, ("evaluate",)),
        PhaseRule(f"{_DREAM / 'checkpoint'}/", Phase.WRITING, ("save", "write")),
        PhaseRule(f"{_DREAM / 'checkpoint'}/", Phase.LOADING, ("load",)),
        PhaseRule(f"{_DREAM / 'files'}/", Phase.WRITING, ("save",)),
        PhaseRule(f"{_DREAM / 'collectives'}/", Phase.COMMUNICATION),
    ]
)


def phases_inside(rules: Iterable[PhaseRule]) -> None:
    """Declare what part of training calls into these files are."""
    _rules.update(dict.fromkeys(rules))


def declared() -> list[PhaseRule]:
    return list(_rules)


def packed(rules: Iterable[PhaseRule]) -> list[Any]:
    return [[rule.place, rule.phase, rule.functions] for rule in rules]


def unpacked(said: Iterable[Any]) -> list[PhaseRule]:
    """Read what `packed` made."""
    return [PhaseRule(place, Phase(phase), tuple(names)) for place, phase, names in said]


_LINE = re.compile(r'File "(.*)", line (\d+) in (.*)')


def phase_of(
    stack: Sequence[str],
    rules: Sequence[PhaseRule] | None = None,
    called: Sequence[str] = (),
) -> Phase:
    """Return the phase of a stack, innermost call first. rules: those declared here. called: the
    stack of what a framework called in a thread of its own meanwhile, if anything."""
    declared_ones = declared() if rules is None else rules
    inside = _phase_in(called, declared_ones)
    return _phase_in(stack, declared_ones) if inside is Phase.OWN else inside


def _phase_in(stack: Sequence[str], rules: Sequence[PhaseRule]) -> Phase:
    found = [phase for line in reversed(stack) if (phase := _phase_at(line, rules)) is not None]
    return next((phase for phase in found if phase in _WHEREVER), next(iter(found), Phase.OWN))


def _phase_at(line: str, rules: Sequence[PhaseRule]) -> Phase | None:
    call = _LINE.fullmatch(line)
    if call is None or call[3] == "<module>":  # an import of the file does not do what it is for
        return None
    return next((rule.phase for rule in rules if rule.matches(call[1], call[3])), None)


@cache
def libraries() -> tuple[str, ...]:
    """Return what a path has in it that is a library's: Python's, dream's, or an installed one."""
    adapters = find_spec("dream.adapters")
    own = [] if adapters is None or adapters.origin is None else [Path(adapters.origin).parent]
    folders = [Path(sysconfig.get_path("stdlib")), _DREAM, *own]
    return ("/site-packages/", "/dist-packages/", *(f"{folder}/" for folder in folders))


def own_line(stack: Sequence[str], libraries: Sequence[str]) -> str:
    """Return `train.py:31 in load`: the innermost call that is no library's; empty where all
    are."""
    for line in stack:
        call = _LINE.fullmatch(line)
        if call is None or call[1].startswith("<") or any(part in call[1] for part in libraries):
            continue
        return f"{Path(call[1]).name}:{call[2]} in {call[3]}"
    return ""
