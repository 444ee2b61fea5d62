"""Rule each cause of a difference in or out: by the figures of the runs there are, and by further
runs in which one of them is left out.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from math import isfinite
from typing import final

from dream.tools.placing import SINGLE, Placement
from dream.tools.record import Change, Record
from dream.tools.verify.judge import Judged, Tolerance, judge, measure_noise
from dream.tools.verify.runs import Broken, Ran, ScriptRunner


class Ruling(StrEnum):
    IN = "yes"
    OUT = "no"
    OPEN = "open"


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """Why a strategy may differ from one device.

    name: what it might be; evidence: how that is known; advice: what to do, where it is.
    """

    name: str
    ruling: Ruling
    evidence: str
    advice: str = ""


def listed(names: Sequence[str], most: int = 4) -> str:
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(names[:most]) + more


def first_other_input(one: Record, other: Record) -> int | None:
    """Return the first step, from 1, in which the model is given something else."""
    for number, (a, b) in enumerate(zip(one.steps, other.steps, strict=False), start=1):
        if (a.samples, a.glance) != (b.samples, b.glance):
            return number
    return None


def reads_known(single: Record) -> bool:
    """Return whether it was seen how much the model is given."""
    return bool(single.datasets) or any(step.samples is not None for step in single.steps)


def slicing_seen(single: Record, ranks: Sequence[Record]) -> str:
    """Say how it shows that a script deals data out by itself; empty where it does not. A rank
    may make its loaders in another order, or some of them only."""
    for record in ranks:
        for mine, whole in zip(record.datasets, single.datasets, strict=False):
            if mine < whole and mine not in single.datasets:
                return (
                    f"a dataset holds {whole} samples under single, and {mine} on rank "
                    f"{record.rank}, where dream deals them out once more"
                )
    first = [record.steps[0].samples for record in ranks if record.steps]
    whole_batch = single.steps[0].samples if single.steps else None
    known = [samples for samples in first if samples is not None]
    if whole_batch is None or len(known) < len(ranks):
        return ""
    given = {record.steps[0].glance for record in ranks}
    if len(given - {None}) > 1 and all(samples >= whole_batch for samples in known):
        return (
            f"in step 1 each rank is given {known[0]} samples, as many as single trains on, and "
            "they are not the same ones"
        )
    if sum(known) >= whole_batch:
        return ""
    return f"in step 1 single trains on {whole_batch} samples, all ranks together on {sum(known)}"


def first_loss_times(
    single: Sequence[float], ours: Sequence[float], allowed: Tolerance
) -> float | None:
    """In times of ours, single's first loss; None where they are equal, or one is no number."""
    if not single or not ours or not ours[0] or not isfinite(single[0]) or not isfinite(ours[0]):
        return None
    if abs(single[0] - ours[0]) <= allowed.loss * max(1.0, abs(single[0])):
        return None
    return single[0] / ours[0]


def shares_known(ranks: Sequence[Record]) -> bool:
    """Return whether it was seen how batches were shared; an equal share is also what is said where
    nothing is known."""
    return all(s.samples is not None or s.weight not in (None, 1.0) for r in ranks for s in r.steps)


def uneven_steps(ranks: Sequence[Record]) -> list[int]:
    """Return the steps, from 1, in which ranks had unequal shares."""
    return [
        number
        for number, steps in enumerate(zip(*(r.steps for r in ranks), strict=False), start=1)
        if len({step.weight for step in steps}) > 1 or len({step.samples for step in steps}) > 1
    ]


def counted_alike(ranks: Sequence[Record], number: int) -> str:
    """Say how it shows that unequal shares counted as equal ones; empty where they did not."""
    steps = [record.steps[number - 1] for record in ranks]
    sizes = [step.samples for step in steps]
    weights = {step.weight for step in steps}
    if len(weights) > 1 or None in weights or len(set(sizes)) == 1 or None in sizes:
        return ""
    return f"in step {number} the ranks had {', '.join(map(str, sizes))} samples, counted alike"


SLICING = "the script deals out its data itself"
SUM = "the loss is a sum over samples"
UNEVEN = "an uneven batch"
_CLOSE = 1e-3


def slicing(_: Judged, ours: Ran, single: Ran) -> Diagnosis:
    said = slicing_seen(single.first, ours.records)
    if not said and not reads_known(single.first):
        return Diagnosis(SLICING, Ruling.OPEN, "it was not seen what the model is given")
    if not said:
        return Diagnosis(SLICING, Ruling.OUT, "ranks are given no fewer samples than single")
    advice = "Give every rank the whole dataset, in the same order: dream deals each batch out."
    return Diagnosis(SLICING, Ruling.IN, said, advice)


def sum_of_samples(judged: Judged, ours: Ran, single: Ran) -> Diagnosis:
    allowed = Tolerance(single.first.dtype, single.updates)
    times, parts = first_loss_times(single.losses, ours.losses, allowed), judged.cell.parts
    if times is None or abs(times - parts) > _CLOSE * parts:
        return Diagnosis(SUM, Ruling.OUT, "the first loss is no multiple of single's")
    said = f"single's first loss is {parts} times the mean over the ranks, as a sum's would be"
    advice = (
        "dream counts a sum as one where the graph shows it: add it up by sum() or reduction='sum' "
        "at the end, not in an operation of its own; or strategy.weigh(loss, count)."
    )
    return Diagnosis(SUM, Ruling.IN, said, advice)


def uneven(judged: Judged, ours: Ran, _: Ran) -> Diagnosis:
    """Losses part in the first uneven step, or behind it, where its gradient was wrong."""
    steps, bad = uneven_steps(ours.records), judged.first_step
    if not shares_known(ours.records):
        return Diagnosis(UNEVEN, Ruling.OPEN, "it was not seen how batches were shared")
    if not steps:
        return Diagnosis(UNEVEN, Ruling.OUT, "every batch was shared evenly")
    said = f"the first one is in step {steps[0]}"
    if bad is not None and not steps[0] <= bad <= steps[0] + 1:
        return Diagnosis(UNEVEN, Ruling.OUT, said)
    unweighed = counted_alike(ours.records, steps[0])
    if not unweighed:
        return Diagnosis(UNEVEN, Ruling.OPEN, said)
    advice = "strategy.weigh(loss, count), or batches of a loader made in the block."
    return Diagnosis(UNEVEN, Ruling.IN, unweighed, advice)


COUPLED = "samples of a batch are coupled"
_COUPLING = (
    "couple samples", "couples samples", "gives one number for a batch",
    "another value in a part of its batch", "divides by cannot be told",
)  # fmt: skip


def coupled(_: Judged, ours: Ran, single: Ran) -> Diagnosis:
    """What dream itself has said of a loss or an operation that looks at a batch as a whole."""
    for line in ours.first.lines:
        if line not in single.first.lines and any(words in line for words in _COUPLING):
            advice = (
                "No share of such a batch has an exact gradient: gather what is held against each "
                "other by strategy.communicator.all_gather, or draw and mix in the data."
            )
            return Diagnosis(COUPLED, Ruling.IN, f"dream said: {line.rstrip('.')}", advice)
    return Diagnosis(COUPLED, Ruling.OUT, "dream has seen none that are")


FIGURES: tuple[Callable[[Judged, Ran, Ran], Diagnosis], ...] = (
    slicing, sum_of_samples, uneven, coupled,
)  # fmt: skip
ITSELF = "single is not deterministic"
RANDOM = "random numbers in the model"
STATISTICS = "BatchNorm's statistics"
SHUFFLING = "unseeded shuffling or drawing of the script's own"
TOGETHER = "several causes at once"
_WORDS: Mapping[Change, str] = {"alike": "all ranks drawing the same numbers"}
_NEXT = "Mend one, and verify again: the others are told then."


@final
class Suspects:
    """Causes that one strategy's difference may have. found: a cause is known, which may not be the
    only one."""

    def __init__(self, cell: Placement, single: Ran, scripts: ScriptRunner) -> None:
        self.found = False
        self._cell = cell
        self._single = single
        self._scripts = scripts
        self._enough: tuple[Change, ...] = ()
        """With these changes, all is equal."""

    def itself(self) -> Diagnosis:
        """Hold two runs of single against each other."""
        again = self._scripts.run(SINGLE)
        if isinstance(again, Broken):
            return Diagnosis(ITSELF, Ruling.IN, f"run again, it failed: {again.reason}")
        held = judge(SINGLE, again, self._single)
        step = held.first_step
        if step is None and (held.worst is None or not held.worst.bad):
            return Diagnosis(ITSELF, Ruling.OUT, "run twice, it has the same losses and parameters")
        if step is None:
            said = "the losses of two runs are the same, the parameters are not"
            return Diagnosis(
                ITSELF, Ruling.IN, said, "Ask the framework for deterministic kernels."
            )
        said = f"run twice, its losses differ from step {step} on"
        read = first_other_input(self._single.first, again.first)
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
        return Diagnosis(ITSELF, Ruling.IN, said, advice)

    def random_numbers(self) -> Diagnosis:
        drawn = self._single.first.draws
        if not drawn:
            return Diagnosis(RANDOM, Ruling.OUT, "nothing drew any while the model worked")
        said = f"drawn by {listed(drawn)}"
        changes: list[tuple[Change, ...]] = [("no dropout",)]
        if self._single.first.statistics:
            changes.append(("no dropout", "fixed statistics"))
        cause = self._without(RANDOM, said, changes)
        if cause.ruling is Ruling.IN:
            advice = (
                "Dropout and noise are those of one device where torch's or Keras's own functions "
                "draw them in the step, from generators alike on every rank: draw so, and remove "
                "randomness='local'."
            )
            return Diagnosis(RANDOM, Ruling.IN, cause.evidence, advice)
        if cause.ruling is Ruling.OUT and not self.found and self._drawn_still():
            said = f"{cause.evidence}; what is drawn beside dropout cannot be taken out"
            return Diagnosis(RANDOM, Ruling.OPEN, said)
        return cause

    def statistics(self) -> Diagnosis:
        norms = self._single.first.statistics
        if not norms:
            return Diagnosis(STATISTICS, Ruling.OUT, "nothing normalises over a rank's share alone")
        cause = self._without(STATISTICS, f"kept by {listed(norms)}", [("fixed statistics",)])
        if cause.ruling is not Ruling.IN:
            return cause
        advice = "Each rank normalises its own share: GroupNorm or LayerNorm would be equal."
        return Diagnosis(STATISTICS, Ruling.IN, cause.evidence, advice)

    def shuffling(self) -> Diagnosis:
        if self.found:
            return self._spared(SHUFFLING)
        if self._equal(self._single, "alike"):
            return Diagnosis(
                SHUFFLING, Ruling.IN, "where all ranks draw the same numbers, they are equal",
                "Draw from a generator of its own with a fixed seed, or shuffle by the loader.",
            )  # fmt: skip
        return Diagnosis(
            SHUFFLING, Ruling.OUT, "they differ too where all ranks draw the same numbers"
        )

    def together(self) -> Diagnosis | None:
        """Take out at the same time all that runs can take out, where none did it alone; None where
        there is only one such thing."""
        first = self._single.first
        changes: list[Change] = ["no dropout"] if first.draws else []
        changes += ["fixed statistics"] if first.statistics else []
        if self.found or not changes:
            return None
        single = self._scripts.single(*changes)
        if isinstance(single, Broken):
            return None
        changes.append("alike")
        judged = self._judged(single, *changes)
        without = f"with {' and '.join(_WORDS.get(change, change) for change in changes)}"
        if judged.good:
            return Diagnosis(TOGETHER, Ruling.IN, f"{without}, they are equal", _NEXT)
        left = [] if judged.ran is None else [look(judged, judged.ran, single) for look in FIGURES]
        for cause in left:
            if cause.ruling is Ruling.IN:
                advice = f"{cause.advice} {_NEXT}"
                return Diagnosis(TOGETHER, Ruling.IN, f"{without}, {cause.evidence}", advice)
        return Diagnosis(TOGETHER, Ruling.OUT, f"{without}, they differ too")

    def _without(self, name: str, what: str, changes: list[tuple[Change, ...]]) -> Diagnosis:
        """Hold the strategy against single again, both changed."""
        if changes[0][0] in self._enough:
            return self._equal_with(name, what)
        if self.found:
            return self._spared(name)
        for change in changes:
            single = self._scripts.single(*change)
            if isinstance(single, Broken):
                said = f"{what}; with {' and '.join(change)}, single failed: {single.reason}"
                return Diagnosis(name, Ruling.OPEN, said)
            if self._equal(single, *change):
                self._enough = change
                return self._equal_with(name, what)
        return Diagnosis(name, Ruling.OUT, f"{what}; with {changes[0][0]}, they differ too")

    def _equal(self, single: Ran, *changes: Change) -> bool:
        """Return whether the strategy, changed, is equal to a single."""
        return self._judged(single, *changes).good

    def _judged(self, single: Ran, *changes: Change) -> Judged:
        """Hold the strategy, changed, against a single."""
        parts = self._cell.parts
        alone = tuple(change for change in changes if change != "alike")  # single has one rank
        return judge(
            self._cell, self._scripts.run(self._cell, *changes), single,
            lambda: measure_noise(self._scripts, single, parts, *alone),
        )  # fmt: skip

    def _drawn_still(self) -> bool:
        """Return whether single draws random numbers with dropout taken out."""
        single = self._scripts.single("no dropout")
        return isinstance(single, Ran) and (single.first.drawn or single.first.keras)

    def _equal_with(self, name: str, what: str) -> Diagnosis:
        said = f"{what}; with {' and '.join(self._enough)}, they are equal"
        return Diagnosis(name, Ruling.IN, said)

    def _spared(self, name: str) -> Diagnosis:
        if self._enough:
            return Diagnosis(name, Ruling.OUT, "without what was found, they are equal")
        return Diagnosis(name, Ruling.OPEN, "not looked into")


def deterministic(single: Ran, scripts: ScriptRunner) -> Diagnosis:
    """Hold two runs of single against each other: all that is asked of a script without a block."""
    return Suspects(SINGLE, single, scripts).itself()


def find_causes(judged: Judged, single: Ran, scripts: ScriptRunner) -> list[Diagnosis]:
    """In the order in which they are looked into: what the figures tell comes before what takes
    further runs, and once a cause is found, no further runs are taken."""
    return [] if judged.ran is None else list(_look(judged, judged.ran, single, scripts))


def _look(judged: Judged, ours: Ran, single: Ran, scripts: ScriptRunner) -> Iterator[Diagnosis]:
    suspects = Suspects(judged.cell, single, scripts)
    itself = suspects.itself()
    yield itself
    if itself.ruling is Ruling.IN:  # nothing else can be told then
        return
    for look in FIGURES:
        cause = look(judged, ours, single)
        suspects.found |= cause.ruling is Ruling.IN
        yield cause
    for take_out in (suspects.random_numbers, suspects.statistics, suspects.shuffling):
        cause = take_out()
        suspects.found |= cause.ruling is Ruling.IN
        yield cause
    together = suspects.together()
    if together is not None:
        yield together
