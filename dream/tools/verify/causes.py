"""What a difference comes of: each suspect ruled in or out."""

from __future__ import annotations

from collections.abc import Iterator

from dream.tools.verify.by_figures import FIGURES
from dream.tools.verify.by_runs import Suspects
from dream.tools.verify.cause import Cause, Ruling
from dream.tools.verify.judge import Judged
from dream.tools.verify.runs import Laboratory, Ran


def find(judged: Judged, single: Ran, laboratory: Laboratory) -> list[Cause]:
    """In the order in which they are looked into: what the figures tell comes before what takes
    further runs, and once a cause is found, no further runs are taken."""
    return [] if judged.ran is None else list(_look(judged, judged.ran, single, laboratory))


def _look(judged: Judged, ours: Ran, single: Ran, laboratory: Laboratory) -> Iterator[Cause]:
    suspects = Suspects(judged.cell, single, laboratory)
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
