"""Made-up cells and outcomes, and figures that were recorded, for tests that judge and show without
training."""

import json
from dataclasses import replace
from itertools import takewhile
from pathlib import Path

import numpy as np

from dream.parameter_server.staleness import Staleness
from dream.tools.compare import outcome
from dream.tools.compare.cells import Cell
from dream.tools.compare.outcome import Finished, RankRecord

SINGLE = Cell("torch", "single", 1)
MIRRORED = Cell("torch", "mirrored", 2)


def finished(
    cell: Cell,
    *,
    shift: float = 0.0,
    rank_shift: float = 0.0,
    losses: tuple[float, ...] = (1.5, 0.5),
    score: float | None = 0.9375,
    speed: float = 1000.0,
    speeds: tuple[float, ...] = (),
    own_megabytes: int = 60,
    replicas: int | None = None,
    staleness: Staleness | None = None,
) -> Finished:
    """Every rank's record of a cell. shift: added to one parameter on every rank; rank_shift:
    the same, times the rank; speeds: of later rounds."""
    parameters = tuple(
        {
            "kernel": np.arange(6, dtype=np.float32).reshape(3, 2) / 8,
            "bias": np.array([0.5, 0.5 + shift + rank * rank_shift], np.float32),
        }
        for rank in range(cell.processes)
    )
    records = tuple(
        RankRecord(
            rank=rank,
            world_size=cell.processes,
            replicas=cell.replicas if replicas is None else replicas,
            device="cpu",
            reduction="gloo",
            losses=list(losses),
            scores=[] if score is None else [*(score / 2 for _ in losses[1:]), score],
            epoch_seconds=[] if score is None else [0.25 * (n + 1) for n in range(len(losses))],
            window=(5.0, 6.0, speed),
            steps=46,
            step_seconds=64 / speed,
            sent_per_step=None if cell.processes == 1 else 40.0,
            feeding_seconds=0.001,
            reducing_seconds=None if cell.processes == 1 else 0.002,
            gradient_bytes=32,
            first_step=100.0 + rank,
            imported_bytes=(300 + rank - own_megabytes) * 10**6,
            peak_bytes=(300 + rank) * 10**6,
            digest=outcome.digest(each),
            staleness=staleness and staleness.to_json(),
        )
        for rank, each in enumerate(parameters)
    )
    again = tuple(
        Finished(
            tuple(replace(each, window=(5.0, 6.0, later)) for each in records), parameters, 2.5
        )
        for later in speeds
    )
    return Finished(records, parameters, start_up=2.5, again=again)


RECORDED = Path(__file__).parent / "recorded.json"
_FIRST_OF_THOSE_THAT_RAN = "samples_per_second"


def recorded_figures():
    """What a real comparison wrote, by `dream compare --json recorded.json`, and beside it rows
    that it had none of: with a slow worker, on more replicas than cores, and one skipped."""
    read = json.loads(RECORDED.read_text())
    served = next(c for c in read["cells"] if c["strategy"] == "parameter_server")
    slow = {"slow": {"rank": 1, "factor": 4.0}, "speed_kept": 0.61}
    read["cells"] += [
        served | slow | {"title": "parameter_server, rank 1 slowed 4x"},
        served | {"replicas": 4, "correctness_only": True},
        _skipped(served),
    ]
    read["summary"]["slow"] = "With rank 1 slowed 4x: those that do not wait keep 61%."
    return read


def _skipped(row):
    """Only what is told of rows that did not run."""
    told = dict(takewhile(lambda item: item[0] != _FIRST_OF_THOSE_THAT_RAN, row.items()))
    blank = dict.fromkeys(("speed_against_single", "speed_told_from_single", "seconds_to_score"))
    blank |= dict.fromkeys(("largest_parameter_difference", "score_reached"))
    reason = "tensorflow cannot use this reduction. Received: reduction='gloo'. Use one of: auto."
    return told | blank | {"verdict": "skipped", "reason": reason, "good": True}
