"""Suspects that further runs tell of: without one of them, is all equal?"""

from __future__ import annotations

from collections.abc import Mapping
from typing import final

from dream.tools.recording.request import Change
from dream.tools.verify import facts, noise
from dream.tools.verify.by_figures import FIGURES
from dream.tools.verify.cause import Cause, Ruling
from dream.tools.verify.cells import SINGLE, Cell
from dream.tools.verify.judge import Judged, judge
from dream.tools.verify.runs import Failed, Laboratory, Ran

ITSELF = "single is not deterministic"
RANDOM = "random numbers in the model"
STATISTICS = "BatchNorm's statistics"
SHUFFLING = "unseeded shuffling or drawing of the script's own"
TOGETHER = "several causes at once"
_WORDS: Mapping[Change, str] = {"alike": "all ranks drawing the same numbers"}
_NEXT = "Mend one, and verify again: the others are told then."


@final
class Suspects:
    """Of one strategy's difference. found: a cause is known, which may not be the only one."""

    def __init__(self, cell: Cell, single: Ran, laboratory: Laboratory) -> None:
        self.found = False
        self._cell = cell
        self._single = single
        self._laboratory = laboratory
        self._enough: tuple[Change, ...] = ()
        """With these changes, all is equal."""

    def itself(self) -> Cause:
        """Two runs of single, held against each other."""
        again = self._laboratory.run(SINGLE)
        if isinstance(again, Failed):
            return Cause(ITSELF, Ruling.IN, f"run again, it failed: {again.reason}")
        held = judge(SINGLE, again, self._single)
        step = held.first_step
        if step is None and (held.worst is None or not held.worst.bad):
            return Cause(ITSELF, Ruling.OUT, "run twice, it has the same losses and parameters")
        if step is None:
            said = "the losses of two runs are the same, the parameters are not"
            return Cause(ITSELF, Ruling.IN, said, "Ask the framework for deterministic kernels.")
        said = f"run twice, its losses differ from step {step} on"
        read = facts.first_other_input(self._single.first, again.first)
        if read is not None and read <= step:
            said += f", and what the model is given from step {read} on: unseeded shuffling"
            advice = "Seed the generator that shuffles, or leave it to the loader in the block."
        else:
            said += (
                ", on the same data as far as it was seen: unseeded weights or draws, or a file "
                "that one run left and the next one read"
            )
            advice = (
                "Seed each generator that the script makes: default_rng() alone has no seed. Where "
                "it goes on from a checkpoint, have it begin anew."
            )
        return Cause(ITSELF, Ruling.IN, said, advice)

    def random_numbers(self) -> Cause:
        drawn = self._single.first.draws
        if not drawn:
            return Cause(RANDOM, Ruling.OUT, "nothing drew any while the model worked")
        said = f"drawn by {facts.listed(drawn)}"
        changes: list[tuple[Change, ...]] = [("no dropout",)]
        if self._single.first.statistics:
            changes.append(("no dropout", "fixed statistics"))
        cause = self._without(RANDOM, said, changes)
        if cause.ruling is Ruling.IN:
            advice = "Dropout draws other masks on each rank: that is right, and not equal."
            return Cause(RANDOM, Ruling.IN, cause.evidence, advice)
        if cause.ruling is Ruling.OUT and not self.found and self._drawn_still():
            said = f"{cause.evidence}; what is drawn beside dropout cannot be taken out"
            return Cause(RANDOM, Ruling.OPEN, said)
        return cause

    def statistics(self) -> Cause:
        norms = self._single.first.statistics
        if not norms:
            return Cause(STATISTICS, Ruling.OUT, "nothing normalises over a rank's share alone")
        cause = self._without(STATISTICS, f"kept by {facts.listed(norms)}", [("fixed statistics",)])
        if cause.ruling is not Ruling.IN:
            return cause
        advice = "Each rank normalises its own share: GroupNorm or LayerNorm would be equal."
        return Cause(STATISTICS, Ruling.IN, cause.evidence, advice)

    def shuffling(self) -> Cause:
        if self.found:
            return self._spared(SHUFFLING)
        if self._equal(self._single, "alike"):
            return Cause(
                SHUFFLING, Ruling.IN, "where all ranks draw the same numbers, they are equal",
                "Draw from a generator of its own with a fixed seed, or shuffle by the loader.",
            )  # fmt: skip
        return Cause(SHUFFLING, Ruling.OUT, "they differ too where all ranks draw the same numbers")

    def together(self) -> Cause | None:
        """All that runs can take out, taken out at the same time, where none did it alone; None
        where there is only one such thing."""
        first = self._single.first
        changes: list[Change] = ["no dropout"] if first.draws else []
        changes += ["fixed statistics"] if first.statistics else []
        if self.found or not changes:
            return None
        single = self._laboratory.single(*changes)
        if isinstance(single, Failed):
            return None
        changes.append("alike")
        judged = self._judged(single, *changes)
        without = f"with {' and '.join(_WORDS.get(change, change) for change in changes)}"
        if judged.good:
            return Cause(TOGETHER, Ruling.IN, f"{without}, they are equal", _NEXT)
        left = [] if judged.ran is None else [look(judged, judged.ran, single) for look in FIGURES]
        for cause in left:
            if cause.ruling is Ruling.IN:
                advice = f"{cause.advice} {_NEXT}"
                return Cause(TOGETHER, Ruling.IN, f"{without}, {cause.evidence}", advice)
        return Cause(TOGETHER, Ruling.OUT, f"{without}, they differ too")

    def _without(self, name: str, what: str, changes: list[tuple[Change, ...]]) -> Cause:
        """The strategy held against single again, both changed."""
        if changes[0][0] in self._enough:
            return self._equal_with(name, what)
        if self.found:
            return self._spared(name)
        for change in changes:
            single = self._laboratory.single(*change)
            if isinstance(single, Failed):
                said = f"{what}; with {' and '.join(change)}, single failed: {single.reason}"
                return Cause(name, Ruling.OPEN, said)
            if self._equal(single, *change):
                self._enough = change
                return self._equal_with(name, what)
        return Cause(name, Ruling.OUT, f"{what}; with {changes[0][0]}, they differ too")

    def _equal(self, single: Ran, *changes: Change) -> bool:
        """Whether the strategy, changed, is equal to a single."""
        return self._judged(single, *changes).good

    def _judged(self, single: Ran, *changes: Change) -> Judged:
        """The strategy, changed, held against a single."""
        parts = self._cell.parts
        alone = tuple(change for change in changes if change != "alike")  # single has one rank
        return judge(
            self._cell, self._laboratory.run(self._cell, *changes), single,
            lambda: noise.measure(self._laboratory, single, parts, *alone),
        )  # fmt: skip

    def _drawn_still(self) -> bool:
        """Whether single draws random numbers with dropout taken out."""
        single = self._laboratory.single("no dropout")
        return isinstance(single, Ran) and (single.first.drawn or single.first.keras)

    def _equal_with(self, name: str, what: str) -> Cause:
        said = f"{what}; with {' and '.join(self._enough)}, they are equal"
        return Cause(name, Ruling.IN, said)

    def _spared(self, name: str) -> Cause:
        if self._enough:
            return Cause(name, Ruling.OUT, "without what was found, they are equal")
        return Cause(name, Ruling.OPEN, "not looked into")
