"""Write a comparison for programs, with the bytes that a step has to send by the book.

N is the bytes of all gradients, P the ranks; what each rank sends at least. All-reduce: P.
Patarasuk and X. Yuan, "Bandwidth optimal all-reduce algorithms for clusters of workstations", 2009.
"""

from __future__ import annotations

import math
import platform
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from statistics import median

from dream.strategies import spec as specs
from dream.tools import support
from dream.tools.compare import judge, notes
from dream.tools.compare.cells import SINGLE, Cell
from dream.tools.compare.judge import JudgedCell, between_frameworks
from dream.tools.compare.outcome import Finished, RankRecord
from dream.tools.compare.settings import Settings
from dream.tools.machine import Machine
from dream.tools.tables import finite
from dream.tools.verify.judge import LIMIT


@dataclass(frozen=True, slots=True)
class Formula:
    """The bytes that a strategy sends in a step, by formula.

    text: for people; sent: (N, P) -> bytes.
    """

    text: str
    sent: Callable[[int, int], float]


def _all_reduces(text: str, times: float) -> Formula:
    return Formula(text, lambda size, ranks: times * 2 * size * (ranks - 1) / ranks)


_EXACT = _all_reduces("2N(P-1)/P", 1)
_SHARDED = {1: _all_reduces("3N(P-1)/P", 1.5), 2: _EXACT, 3: _all_reduces("3N(P-1)/P", 1.5)}
"""1: gradients are added up everywhere, and what each stepped is gathered. 2, 3: parameters are
gathered, for 3 once more on the way back, and gradients scattered."""
_TOLD = ("zero", "data", "every")
UNSEEN = ("shared_memory", "in process")
"""Reductions whose bytes are in no socket."""


def sent_formula(cell: Cell) -> Formula | None:
    """Return None where nothing is sent, or what is sent does not depend on N and P alone:
    strategies that split the model send what its layers yield."""
    if cell.processes == 1 or cell.splits:
        return None
    given = specs.parse_request(cell.strategy)[1]
    options = specs.find(cell.name).resolve({k: v for k, v in given.items() if k in _TOLD})
    match cell.name:
        case "sharded":
            return None if options["data"] not in (None, 1) else _SHARDED[int(str(options["zero"]))]
        case "local_sgd":
            every = int(str(options["every"]))
            return _EXACT if every == 1 else _all_reduces(f"2N(P-1)/P/{every}", 1 / every)
        case "parameter_server":
            return Formula("N", lambda size, _: float(size))
        case _:
            return _EXACT


Figures = dict[str, object]


def build(rows: Sequence[JudgedCell], settings: Settings, machine: Machine) -> Figures:
    """Return what `--json` writes. A figure that is nan or infinite, or was not read, is null.
    Figures of several rounds: the median, and in a list every round's."""
    return {
        "when": datetime.now(UTC).isoformat(timespec="seconds"),
        "machine": machine.figures,
        "python": platform.python_version(),
        "versions": support.versions(),
        "title": settings.script[1] if settings.script else settings.job.task,
        "job": None if settings.script else asdict(settings.job),
        "rounds": settings.rounds,
        "limit": LIMIT,
        "score_aimed_at": _aims(rows),
        "summary": notes.answers(rows, machine, settings.unit),
        "unit": settings.unit,
        "notes": {
            "trained": notes.trained(rows, settings),
            "proof": notes.proof(rows, settings),
            "timing": notes.timing(settings),
            "alone": notes.alone(rows, settings).strip(),
            "worth": notes.worth(rows, settings, machine),
        },
        "cells": [_cell(row, settings, machine) for row in rows],
        "loss_difference_between_frameworks": finite(between_frameworks(rows)),
        "good": all(row.verdict.good for row in rows),
    }


def _aims(rows: Sequence[JudgedCell]) -> Figures:
    """framework -> the score whose time is told."""
    singles = [row for row in rows if row.cell.name == SINGLE]
    return {
        row.cell.framework: row.outcome.first.score - judge.POINT
        for row in singles
        if isinstance(row.outcome, Finished) and row.outcome.first.score is not None
    }


def _cell(row: JudgedCell, settings: Settings, machine: Machine) -> Figures:
    cell = row.cell
    figures: Figures = {
        "framework": cell.framework,
        "strategy": cell.strategy,
        "title": cell.title,
        "processes": cell.processes,
        "devices_per_process": cell.devices,
        "replicas": cell.replicas,
        "reduction": row.reduction or None,
        "verdict": str(row.verdict),
        "good": row.verdict.good,
        "reason": row.reason or None,
        "unit": settings.unit,
        "losses_by": "step" if settings.script else "epoch",
        "correctness_only": cell.replicas > machine.cores,
        "speed_against_single": finite(row.speed),
        "speed_told_from_single": row.apart if row.speed is not None else None,
        "largest_parameter_difference": finite(row.difference),
        "largest_allowed": row.limit,
        "waits_for_all": cell.waits,
        "slow": None if cell.slow is None else asdict(cell.slow),
        "speed_kept": finite(row.kept),
        "seconds_to_score": None if row.seconds is None else finite(row.seconds.median),
        "score_reached": (None if row.seconds is None else math.isfinite(row.seconds.median)),
    }
    return figures | (_finished(cell, row.outcome) if isinstance(row.outcome, Finished) else {})


def _finished(cell: Cell, done: Finished) -> Figures:
    first, ranks = done.first, done.records
    book = sent_formula(cell)
    return {
        "samples_per_second": finite(done.speed.median),
        "samples_per_second_by_round": [finite(r.rate) for r in done.rounds],
        "losses": [finite(loss) for loss in first.losses],
        "test_score": finite(first.score),
        "test_scores": [finite(score) for score in first.scores],
        "epoch_seconds": [finite(seconds) for seconds in first.epoch_seconds],
        "staleness": _staleness(done),
        "steps": first.steps,
        "batches_per_step": done.batches,
        "step_seconds": finite(done.over_rounds(lambda r: r.first.step_seconds).median),
        "feeding_seconds": _median_read(done, lambda record: record.feeding_seconds),
        "reducing_seconds": (
            None if cell.splits else _median_read(done, lambda record: record.reducing_seconds)
        ),
        "start_up_seconds": finite(done.over_rounds(lambda r: r.start_up).median),
        "start_up_seconds_by_round": [finite(r.start_up) for r in done.rounds],
        "peak_bytes_per_rank": [record.peak_bytes for record in ranks],
        "bytes_beyond_import_per_rank": [r.peak_bytes - r.imported_bytes for r in ranks],
        "gradient_bytes": first.gradient_bytes,
        "sent_bytes_per_step_by_rank": [finite(record.sent_per_step) for record in ranks],
        "sent_bytes_by_formula": (
            book and done.batches * book.sent(first.gradient_bytes, cell.processes)
        ),
        "formula": book and book.text,
        "device": first.device,
        "parameter_digests": [record.digest for record in ranks],
    }


def _staleness(done: Finished) -> Figures | None:
    told = done.staleness
    if told is None:
        return None
    said = told.to_json()
    return {"mean": told.mean, "max": told.max, "updates": told.updates} | said


def _median_read(done: Finished, figure: Callable[[RankRecord], float | None]) -> float | None:
    """Return the median over the rounds of rank 0's."""
    found = [figure(each.first) for each in done.rounds]
    known = [value for value in found if value is not None]
    return finite(median(known)) if known else None
