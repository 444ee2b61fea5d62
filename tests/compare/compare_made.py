"""Made-up cells and outcomes, for tests that judge and show without training."""

import numpy as np

from dream.compare import record
from dream.compare.cells import Cell
from dream.compare.outcome import Finished
from dream.compare.record import RankRecord

SINGLE = Cell("torch", "single", 1)
MIRRORED = Cell("torch", "mirrored", 2)


def finished(
    cell: Cell,
    *,
    shift: float = 0.0,
    rank_shift: float = 0.0,
    losses: tuple[float, ...] = (1.5, 0.5),
    accuracy: float = 0.9375,
    speed: float = 1000.0,
    replicas: int | None = None,
) -> Finished:
    """Every rank's record of a cell. shift: added to one parameter on every rank; rank_shift:
    the same, times the rank."""
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
            accuracy=accuracy,
            samples_per_second=speed,
            first_step=100.0 + rank,
            peak_bytes=(300 + rank) * 10**6,
            digest=record.digest(each),
        )
        for rank, each in enumerate(parameters)
    )
    return Finished(records, parameters, start_up=2.5)
