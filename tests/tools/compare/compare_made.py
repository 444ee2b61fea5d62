"""Made-up cells and outcomes, for tests that judge and show without training."""

from dataclasses import replace

import numpy as np

from dream.parameter_server.staleness import Staleness
from dream.tools.compare import record
from dream.tools.compare.cells import Cell
from dream.tools.compare.outcome import Finished
from dream.tools.compare.record import RankRecord

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
            digest=record.digest(each),
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
