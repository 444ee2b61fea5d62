"""The table: which script, in which framework, under which strategies, is held to what.

Every row is run without dream and under `dream run`. `equal` is the rule; a script for which no
exact answer can exist, or which asks for what dream must not do, names what it is told instead.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib.util import find_spec

EQUAL = "equal"
WORDS = 4  # of which a phrase that names a cause has as many
DATA_PARALLEL = ("mirrored", "horovod", "sharded")
ONE_PROCESS = "data_parallel:devices=2"  # of torch's alone: on TensorFlow it is `mirrored`


@dataclass(frozen=True, slots=True)
class Row:
    """A script, and what it is held to.

    expect: EQUAL, or words, which name the cause, of a line that dream logs or of the error that
        the script ends with; one that is equal none the less need say nothing.
    but: the same for single strategies that differ from the rest.
    logs: words of the line that dream logs where nothing but what the script logs is off.
    reason: why it need not be equal, or why by more than 1e-6.
    needs: what must be installed besides; where it is not, the row is skipped.
    sample: strategies under which `make test` runs it, on two ranks; the rest is exhaustive.
    """

    script: str
    framework: str = "torch"
    strategies: tuple[str, ...] = DATA_PARALLEL
    ranks: tuple[int, ...] = (2, 3)
    expect: str = EQUAL
    but: Mapping[str, str] = field(default_factory=dict)
    logs: str = ""
    tolerance: float = 1e-6
    reason: str = ""
    needs: tuple[str, ...] = ()
    sample: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        words = [each for each in (self.expect, *self.but.values(), self.logs) if each != EQUAL]
        plain = not any(words) and self.tolerance <= 1e-6
        assert plain or self.reason, f"{self.script}: an exception has a reason"
        short = [each for each in words if 0 < len(each.split()) < WORDS]
        assert not short, f"{self.script}: {short} may stand anywhere"

    def expected(self, strategy: str) -> str:
        return self.but.get(strategy, self.expect)

    @property
    def missing(self) -> list[str]:
        return [name for name in self.needs if find_spec(name) is None]

    def cells(self) -> list[tuple[str, int]]:
        cells = [(strategy, ranks) for strategy in self.strategies for ranks in self.ranks]
        one = self.framework == "torch" and self.strategies is DATA_PARALLEL
        return [*cells, (ONE_PROCESS, 1)] if one else cells


def in_one_process(strategy: str) -> bool:
    """Whether it names the devices of a process: its ranks are then one."""
    return "devices=" in strategy


def rows() -> list[Row]:
    from strangers_keras_rows import ROWS as KERAS
    from strangers_torch_rows import ROWS as TORCH

    return [*TORCH, *KERAS]
