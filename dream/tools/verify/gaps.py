"""Two runs' figures held against each other."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from dream.tools.recording.record import Arrays


@dataclass(frozen=True, slots=True)
class Gap:
    """The largest difference of one parameter on one rank, and what is allowed there."""

    name: str
    rank: int
    size: float
    allowed: float

    @property
    def bad(self) -> bool:
        return not self.size <= self.allowed

    @property
    def times(self) -> float:
        """How many times over what is allowed; infinite where nothing is, or it is nan."""
        if not self.bad:
            return self.size / self.allowed if self.allowed else 0.0
        ratio = self.size / self.allowed if self.allowed else float("inf")
        return ratio if ratio == ratio else float("inf")


def difference(ours: NDArray[Any], theirs: NDArray[Any]) -> float:
    """Of any element; infinite where shapes differ, or only one of two is a number. What is nan
    in both is alike."""
    import numpy as np

    if ours.shape != theirs.shape:
        return float("inf")
    if ours.dtype.kind in "iub" and theirs.dtype.kind in "iub":
        return float(np.abs(ours.astype(np.int64) - theirs.astype(np.int64)).max(initial=0))
    wide = np.complex128 if "c" in (ours.dtype.kind, theirs.dtype.kind) else np.float64
    a, b = ours.astype(wide), theirs.astype(wide)
    with np.errstate(all="ignore"):
        apart = np.where((a == b) | (np.isnan(a) & np.isnan(b)), 0.0, np.abs(a - b))
    return float(np.nan_to_num(apart, nan=np.inf).max(initial=0.0))


def scale(values: NDArray[Any]) -> float:
    """The largest value, or 1; 0 for what is no float and must be the same."""
    import numpy as np

    if values.dtype.kind not in "fc":
        return 0.0
    finite = np.abs(values[np.isfinite(values)])
    return max(1.0, float(finite.max(initial=0.0)))


def by_name(ours: Arrays, theirs: Arrays) -> dict[str, float]:
    """The difference of each array; infinite where only one has it."""
    return {
        name: difference(ours[name], theirs[name])
        if name in ours and name in theirs
        else float("inf")
        for name in dict.fromkeys([*theirs, *ours])
    }


def of_losses(ours: Sequence[float], theirs: Sequence[float]) -> list[float]:
    """Step by step, as far as both go; nan in both is alike."""
    return [
        0.0 if a == b or (a != a and b != b) else abs(a - b)
        for a, b in zip(ours, theirs, strict=False)
    ]
