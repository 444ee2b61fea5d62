"""What a rank leaves behind in the cell's folder: its figures as JSON, its parameters as npz."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING

from dream.files.whole import write_whole

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Parameters = Mapping[str, NDArray[np.float32]]


@dataclass(frozen=True, slots=True)
class RankRecord:
    """A rank's figures.

    losses: global, one per epoch, or of a script one per step; scores: on the test set, one per
    epoch, none for a script; epoch_seconds: from the first step's beginning to the end of each
    epoch. window: when the warm-up ended and the training, by a clock that all ranks share, and the
    samples that the whole job trained on between; of a script, steps. first_step: seconds since
    1970. steps: of this rank in all; step_seconds, sent_per_step (bytes over sockets, None where
    nobody counts): after the warm-up.
    feeding_seconds, reducing_seconds: a step's parts, as in probe.Parts; None where they were not
    read. gradient_bytes: of all gradients together. imported_bytes: resident once the framework was
    imported; peak_bytes: the most that was ever. digest: of the parameters, equal where they are
    bit-identical. staleness: of all updates, as `Staleness.to_json` tells it; None where none is.
    """

    rank: int
    world_size: int
    replicas: int
    device: str
    reduction: str
    losses: list[float]
    scores: list[float]
    epoch_seconds: list[float]
    window: tuple[float, float, float]
    steps: int
    step_seconds: float
    sent_per_step: float | None
    feeding_seconds: float | None
    reducing_seconds: float | None
    gradient_bytes: int
    first_step: float
    imported_bytes: int
    peak_bytes: int
    digest: str
    staleness: Mapping[str, object] | None = None

    @property
    def score(self) -> float | None:
        """The last."""
        return self.scores[-1] if self.scores else None


def write(folder: Path, record: RankRecord, parameters: Parameters) -> None:
    """Both files, each all or nothing; the JSON comes last and says that the rank is done."""
    import numpy as np

    write_whole(
        _parameters_file(folder, record.rank),
        lambda file: np.savez(file, allow_pickle=False, **parameters),
    )
    text = json.dumps(asdict(record)).encode()
    write_whole(_record_file(folder, record.rank), lambda file: file.write(text))


def read(folder: Path, rank: int) -> RankRecord:
    """Raises FileNotFoundError where the rank left nothing."""
    said = json.loads(_record_file(folder, rank).read_text())
    return RankRecord(**said | {"window": tuple(said["window"])})


def read_parameters(folder: Path, rank: int) -> Parameters:
    import numpy as np

    with np.load(_parameters_file(folder, rank)) as arrays:
        return dict(arrays)


def digest(parameters: Parameters) -> str:
    """Names, shapes, dtypes and bits."""
    state = sha256()
    for name, value in sorted(parameters.items()):
        state.update(f"{name} {value.shape} {value.dtype.str}".encode())
        state.update(value.tobytes())
    return state.hexdigest()


def _record_file(folder: Path, rank: int) -> Path:
    return folder / f"rank{rank}.json"


def _parameters_file(folder: Path, rank: int) -> Path:
    return folder / f"rank{rank}.npz"
