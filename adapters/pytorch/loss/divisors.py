"""What a sum is divided by: a count that the ranks' parts add up to, or a constant.

A number of Python's, or a tensor without a graph, says neither. It is told by its size, and, once
for each structure of a loss, by whether all ranks have the same.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import wraps
from math import inf, prod
from typing import Any, Literal, final

import torch

from dream.adapters.pytorch.loss.graph import Reduction
from dream.data.partition import Share

_FLOOR = "dream_floor"
"""An attribute of a tensor that `clamp` made."""
CONSTANT = "a sum, divided by the size of the global batch, a constant"
COUNT = "a sum, divided by as many samples as this rank has, a count"
TIMES = (
    "a mean, times a number that is how many samples this rank has, taken for a constant. If it is "
    "their number, as len(x) is, pass reduction='sum', or strategy.weigh(loss, count)"
)
LATE = (
    "a sum, divided by a number that is not the same on every rank, as a count; it was when the "
    "loss was first seen, so the steps until now took it for a constant. Divide by a tensor, as "
    "mask.sum() without its item(), or say strategy.weigh(loss, count)"
)
UNEVEN = (
    "a mean over rows that are not as many for each sample on every rank, as over a batch that was "
    "joined to another: they are counted from now on, and the steps until now took it for a mean "
    "over samples. Join batches right before the model is called, or call it on each"
)
OF_NONE = (
    "a sum, divided by 1 on this rank and by other numbers on others, parts of a count: where that "
    "is max(count, 1) of rows that have nothing to count, it is one too many, and another model is "
    "trained. Divide by a tensor, as mask.sum().clamp(min=1), or say strategy.weigh(loss, count)"
)
EITHER = (
    "a sum, divided by a number that is the size of the global batch, and how many elements this "
    "rank adds up too: it is taken for the batch's size, a constant, and is another model's where "
    "it is out.numel(). Take a mean, by .mean() over the elements, or .sum(1).mean() over the rows"
)
REFUSED = {LATE, UNEVEN, OF_NONE, EITHER}
"""What was found after steps that had taken it for another thing, or is not known."""
UNLIKE = (
    "a sum, divided by a tensor that is not the same on every rank, and no count of what the loss "
    "adds up: each rank's counts as its part of a count that adds up, so what was added to it, or "
    "held above a floor by anything but clamp(min=...) or maximum(count, 1), is there once for "
    "each rank. If that is not so, say strategy.weigh(loss, count)"
)
_LITTLE = 1e-3
FIGURES = 7
"""Numbers that a rank tells of each divisor."""
NO_DIVISOR = (-inf, -inf, *(0.0,) * (FIGURES - 2))
"""Those of a rank that has none: any other's are the greatest."""


@final
@dataclass(frozen=True, slots=True)
class Floor:
    """The least that a divisor may be, and what it would be without it: of the ranks' counts the
    sum is held against the floor, not each. instead: it stands where nothing is counted, as in
    Python's max(count, 1), and is known to ranks that have nothing alone."""

    counted: torch.Tensor | float
    least: float
    instead: bool = False

    def hold(self, total: Any) -> Any:
        """Return what the global loss is divided by. total: what all ranks have counted."""
        if isinstance(total, torch.Tensor):
            return total.clamp(min=self.least)
        if self.instead:  # as exact as the sum is where others have counted
            return self.least if total < self.least / 2 else total
        return max(total, self.least)


@final
@dataclass(frozen=True, slots=True)
class SumDivisor:
    """What this rank's sum is divided by. over: the sum, ragged where it is of as many elements as
    the data say. counts: whether it is how many samples, or elements, this rank adds up; None where
    nobody has looked. all_samples: whether it is the size of the global batch. whole: whether it is
    a tensor of whole numbers, as a sum of a mask is. weights: sums of what the sum's elements are
    multiplied by, or chosen by; and whether by the script, else by the loss's own targets."""

    by: torch.Tensor | float
    over: Reduction
    share: Share
    ragged: bool
    counts: bool | None = None
    all_samples: bool = False
    whole: bool = False
    weights: Callable[[], Iterable[tuple[float, bool]]] = tuple

    def read(self) -> tuple[Literal["count", "mean", "sum"], float | None, str]:
        """What a sum over numbers is by their sizes alone: (kind, count, what is noticed)."""
        if self.ragged:
            return "count", float(self.by), ""
        if self.counts:
            return "mean", None, COUNT
        return "sum", None, CONSTANT if self.all_samples else ""

    @property
    def nothing(self) -> bool:
        """Whether there is nothing to add up, so that a divisor was made up: all but the rows that
        there are."""
        if not self.ragged or prod(self.over.sizes) != 0:
            return False
        return isinstance(self.by, torch.Tensor) or self.by == 1.0 or self.by != self.share.count

    @property
    def may_count(self) -> bool:
        """Whether it is the size of the global batch, and what this rank adds up too: two rows of
        three elements, of a batch of six."""
        return self.all_samples and self.by in _sizes(self.over, self.share)

    @property
    def of_none(self) -> bool:
        """Whether it is a number of things of which there are none, which no constant is."""
        return not isinstance(self.by, torch.Tensor) and self.by == 0.0

    def stands_for_none(self) -> bool | None:
        """Whether a number is what stands where nothing is counted, as in max(count, 1); None where
        nothing tells."""
        if (
            isinstance(self.by, torch.Tensor)
            or self.by != 1.0
            or self.ragged
            or not self.share.count
        ):
            return False
        sums = [weights for weights, _ in self.weights()]
        if not sums or (any(sums) and 1.0 not in sums):
            return None
        return 1.0 not in sums

    def figures(self) -> list[float]:
        """[the divisor, its negative, whether it is no count, whether it is a tensor, whether
        nothing tells that it is a count, whether it may be a constant that only happens to be one,
        whether it is of as many as the data say]."""
        tensor = isinstance(self.by, torch.Tensor)
        if not self.share.count or self.nothing:
            return [-inf, -inf, 0.0, float(tensor), 0.0, 0.0, float(self.ragged)]
        by = float(self.by)
        counts = self.counts
        if counts is None:
            counts = _is_count(by, self.over, self.share) or by in _sizes(self.over, self.share)
        told = [given for each, given in self.weights() if _is_sum(by, each)]
        known = counts or bool(told)
        sure = any(told) or (known and self.whole) or bool(self.stands_for_none())
        told_of = not counts, tensor, not known, not sure, self.ragged
        return [by, -by, *map(float, told_of)]


@final
@dataclass(frozen=True, slots=True)
class Verdict:
    """What the ranks have found a divisor to be. count: parts of what they add up to; None where it
    is what each rank reads of the sizes. value: that of a constant. noticed: what is taken for
    granted so. of_tensor: whether some rank has a tensor there. ragged: whether some rank's sum is
    of as many as the data say."""

    count: bool | None
    value: float = 0.0
    noticed: str = ""
    of_tensor: bool = False
    ragged: bool = False

    @property
    def counts(self) -> bool:
        """Whether it is a count to ranks that have something to add up."""
        return self.ragged or self.of_tensor if self.count is None else self.count

    @classmethod
    def of(cls, figures: Sequence[float], share: Share | None) -> Verdict:
        """figures: the greatest of each, over the ranks."""
        greatest, least, of_tensor = figures[0], -figures[1], bool(figures[3])
        alike = least == greatest
        if greatest == -inf or not (figures[2] or (of_tensor and alike)):
            return cls(None, of_tensor=of_tensor, ragged=bool(figures[6]))
        if not alike:
            unlike = UNLIKE if of_tensor and figures[4] else ""
            return cls(count=True, noticed=unlike, of_tensor=of_tensor)
        if not of_tensor:  # a number that is the sum of a mask on every rank is no constant
            noticed = _noticed_of_number(greatest, share)
            return cls(False, greatest, noticed) if figures[5] else cls(True)
        if figures[2] and share is not None and greatest == share.total:
            return cls(False, greatest, CONSTANT, of_tensor=True)
        if not figures[5]:
            return cls(True, of_tensor=True)
        return cls(
            True,
            noticed=f"a sum, divided by a tensor that is {greatest:g} on every rank: each rank's "
            "counts as its part of a count that adds up. If it is a constant, divide by a number "
            "of Python's, as by float(divisor)",
            of_tensor=True,
        )

    def noticed_of(self, divided: SumDivisor) -> str:
        """What is taken for granted of a rank's."""
        return EITHER if self.noticed == CONSTANT and divided.may_count else self.noticed

    def once_unlike(self) -> Verdict:
        """Return what a number is that was not the same on every rank before."""
        if self.count is not False or self.of_tensor:
            return self
        return Verdict(True, noticed=LATE)

    def overtaken(self, divided: SumDivisor) -> bool:
        """Whether what a rank divides by now is no longer what was found."""
        if self.count or not divided.share.count or divided.nothing:
            return False
        if self.count is None:
            return divided.counts is False and not divided.may_count
        if isinstance(divided.by, torch.Tensor) and not self.of_tensor:
            return True
        return float(divided.by) != self.value


def divided_by_numbers(
    numbers: Sequence[float],
    over: Reduction,
    share: Share,
    weights: Callable[[], Iterable[tuple[float, bool]]],
    *,
    ragged: bool,
) -> SumDivisor:
    counts = any(_is_count(number, over, share) for number in numbers)
    total = share.total in numbers
    return SumDivisor(
        prod(numbers), over, share, ragged, counts=counts, all_samples=total, weights=weights
    )


def times_the_rows(numbers: Sequence[Any], share: Share, fixed: set[float]) -> str:
    """Say, of a mean over samples, that it is multiplied by as many as this rank has. numbers: what
    it is divided by; a factor's are its inverse. fixed: those that were met on shares of other
    sizes, which go by no share; added to."""
    rows = share.count
    if rows < 2 or share.parts == 1:
        return ""
    floats = [each for each in numbers if isinstance(each, float)]
    times = [each for each in floats if abs(each * rows - 1.0) < 1e-6]
    fixed.update(each for each in floats if each not in times)
    return TIMES if any(each not in fixed for each in times) else ""


def of_the_one(divisor: torch.Tensor | float, found: Sequence[Reduction]) -> bool:
    """Whether what a share of one sample is divided by is that sample's own, as a length is: other
    ranks, which have more, have one for each."""
    if not found or not isinstance(divisor, torch.Tensor) or not divisor.dim():
        return False
    return found[-1].sizes[:1] == divisor.shape[:1]


def over_samples(chain: Sequence[Reduction], rows: int) -> Reduction:
    """The reduction that removes the samples: the innermost one over dim 0 of as many."""
    for each in reversed(chain):
        if each.dims and 0 in each.dims and rows and each.sizes[0] % rows == 0:
            return each
    return chain[0]


def noting_floors(clamp: Callable[..., Any]) -> Callable[..., Any]:
    """`clamp`, which notes on a number that it makes what that was before."""

    @wraps(clamp)
    def wrapped(x: Any, *args: Any, **kwargs: Any) -> Any:
        if torch.compiler.is_compiling() or not _may_count(x):
            return clamp(x, *args, **kwargs)
        least = args[0] if args else kwargs.get("min")
        before = x.detach().clone()
        made = clamp(x, *args, **kwargs)
        if isinstance(least, (int, float)):
            setattr(made, _FLOOR, Floor(before, float(least)))
        elif least is not None and _may_count(least):
            setattr(made, _FLOOR, (before, least.detach().clone()))
        return made

    return wrapped


def floor_of(divisor: torch.Tensor | float) -> Floor | None:
    """What a divisor is held above; None where nothing tells. Numbers are read here, for which the
    host may wait for a GPU, and not wherever the greater of two is taken."""
    found: Floor | tuple[torch.Tensor, torch.Tensor] | None = getattr(divisor, _FLOOR, None)
    return _of_two(*found) if isinstance(found, tuple) else found


def _of_two(x: torch.Tensor, y: torch.Tensor) -> Floor | None:
    """Of two numbers whose greater one is taken: which is the count, and the floor. A floor is 1,
    or no whole number; None where that does not tell."""
    one, other = float(x), float(y)
    if other == 1.0 or (other % 1.0 and not one % 1.0):
        return Floor(x, other)
    return Floor(y, one) if one == 1.0 or (one % 1.0 and not other % 1.0) else None


def _may_count(x: Any) -> bool:
    return type(x) is torch.Tensor and not x.requires_grad and x.numel() == 1


def _noticed_of_number(number: float, share: Share | None) -> str:
    if share is None or not share.count or number < share.count or share.count == 1:
        return ""
    if number == share.total:
        return CONSTANT
    constant = "a sum, divided by a number that every rank has, a constant"
    return "" if number % share.count else constant


def _is_sum(divisor: float, weights: float) -> bool:
    """Whether a divisor is the sum of some weights, be there a little more against a division by
    nothing."""
    return abs(divisor - weights) <= (_LITTLE if weights == 0.0 else 1e-6 * abs(divisor))


def _sizes(over: Reduction, share: Share) -> set[int]:
    """How many samples, rows of several dims and elements a sum is over."""
    many, counts = 1, {share.count}
    for size in over.sizes:
        many *= size
        counts.add(many)
    return counts


def _is_count(divisor: float, over: Reduction, share: Share) -> bool:
    """Whether a number is how many samples, or parts of samples, this rank adds up."""
    if not share.count or (divisor == share.total and share.total != share.count):
        return False
    return abs(divisor - round(divisor)) < 1e-6 * divisor and (
        round(divisor) in _sizes(over, share)
    )
