"""The figures of a comparison, as its JSON has them, for drawing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

SINGLE = "single"


@dataclass(frozen=True, slots=True)
class Shown:
    """A row that finished. said: its entry in the JSON."""

    said: Mapping[str, Any]

    @property
    def framework(self) -> str:
        return str(self.said["framework"])

    @property
    def strategy(self) -> str:
        return str(self.said["title"])

    @property
    def replicas(self) -> int:
        return int(self.said["replicas"])

    @property
    def is_single(self) -> bool:
        return self.strategy.partition(":")[0] == SINGLE

    @property
    def label(self) -> str:
        """For an axis: `torch mirrored x 2`; long names in short."""
        short = self.strategy.replace("model_parallel:", "").replace(" in 1 process", ", 1 process")
        return f"{self.framework} {short} x {self.replicas}"

    @property
    def speeds(self) -> list[float]:
        """Samples per second, one a round."""
        return [value for value in self.said["samples_per_second_by_round"] if value is not None]

    @property
    def speed(self) -> float:
        return float(self.said["samples_per_second"] or 0.0)

    @property
    def unit(self) -> str:
        """Of speeds."""
        return str(self.said["unit"]).replace("/s", " a second")

    @property
    def losses(self) -> list[float]:
        """What is not a number is left out of a line as a gap."""
        return [float("nan") if each is None else float(each) for each in self.said["losses"]]

    def milliseconds(self, name: str) -> float | None:
        seconds = self.said[name]
        return None if seconds is None else float(seconds) * 1e3


def finished(figures: Mapping[str, Any]) -> list[Shown]:
    """The rows that have figures, in the order of the grid."""
    return [Shown(cell) for cell in figures["cells"] if "losses" in cell]


def singles(rows: Sequence[Shown]) -> dict[str, Shown]:
    """By framework."""
    return {row.framework: row for row in rows if row.is_single}


def split(row: Shown) -> dict[str, float]:
    """Milliseconds of a step by what they go to. What is not read apart is in the computing; a
    script's steps are not read apart at all."""
    step = row.milliseconds("step_seconds") or 0.0
    if row.said["losses_by"] == "step":
        return {"the whole step": step}
    talking = row.milliseconds("reducing_seconds") or 0.0
    feeding = row.milliseconds("feeding_seconds") or 0.0
    return {
        "computing, and waiting for one another": max(0.0, step - talking - feeding),
        "communication": talking,
        "input": feeding,
    }
