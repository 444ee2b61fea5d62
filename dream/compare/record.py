"""What a rank leaves behind in the cell's folder: its figures as JSON, its parameters as npz."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from hashlib import sha256
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Parameters = Mapping[str, NDArray[np.float32]]


@dataclass(frozen=True, slots=True)
class RankRecord:
    """A rank's figures.

    losses: global, one per epoch; first_step: seconds since 1970; peak_bytes: the largest
    resident size the process had; digest: of the parameters, equal where they are bit-identical.
    """

    rank: int
    world_size: int
    replicas: int
    device: str
    reduction: str
    losses: list[float]
    accuracy: float
    samples_per_second: float
    first_step: float
    peak_bytes: int
    digest: str


def write(folder: Path, record: RankRecord, parameters: Parameters) -> None:
    """Both files, each all or nothing; the JSON comes last and says that the rank is done."""
    import numpy as np

    _write(
        _parameters_file(folder, record.rank),
        lambda file: np.savez(file, allow_pickle=False, **parameters),
    )
    text = json.dumps(asdict(record)).encode()
    _write(_record_file(folder, record.rank), lambda file: file.write(text))


def read(folder: Path, rank: int) -> RankRecord:
    """Raises FileNotFoundError where the rank left nothing."""
    return RankRecord(**json.loads(_record_file(folder, rank).read_text()))


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


def peak_bytes() -> int:
    """The largest resident size this process has had."""
    import sys
    from resource import RUSAGE_SELF, getrusage

    peak = getrusage(RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024


def _record_file(folder: Path, rank: int) -> Path:
    return folder / f"rank{rank}.json"


def _parameters_file(folder: Path, rank: int) -> Path:
    return folder / f"rank{rank}.npz"


def _write(path: Path, fill: Callable[[IO[bytes]], Any]) -> None:
    part = path.with_name(f"{path.name}.part")
    with part.open("wb") as file:
        fill(file)
    os.replace(part, path)  # noqa: PTH105
