"""Whether ranks of two frameworks are about to train the same model in the same way.

Names differ between frameworks and are not compared; kinds, shapes and order are. Shapes are
those of Keras's layout, which every rank puts its own tensors into.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import astuple, dataclass
from functools import cache
from itertools import zip_longest
from typing import Literal, TypeVar

from dream._errors import Desynchronized
from dream._log import logger
from dream.collectives import Communicator
from dream.model_description.layout import Layout
from dream.strategies.spec import Framework

T = TypeVar("T")
"""A plain value."""


def gathered(communicator: Communicator, value: T, doing: str) -> list[T]:
    """Every rank's value, in rank order. doing: what this rank is about, which must be what all
    are about: frameworks differ in what they say when."""
    said: list[tuple[str, T]] = communicator.all_gather_object((doing, value))
    for rank, (theirs, _) in enumerate(said):
        if theirs != said[0][0]:
            raise Desynchronized(
                "Ranks of two frameworks must take the same steps in the same order. Received: "
                f"rank 0 {said[0][0]}, rank {rank} {theirs}. With fit on one, use Keras's fit on "
                "all; with a loop of torch's, strategy.prepare(data) and strategy.train_step on "
                "TensorFlow."
            )
    return [value for _, value in said]


Way = Literal["fit", "step"]
"""Keras's fit, evaluate and *_on_batch; or train_step, and a loop of torch's own."""
_WAYS = {"fit": "Keras's fit", "step": "train_step or a loop of one's own"}


@dataclass(frozen=True, slots=True)
class Account:
    """What a rank says of a model before it trains it.

    weights: parameters, running statistics and whatever else rank 0's values are taken of.
    summed: what is added up over the ranks at each step, in the order in which it travels.
    states: the optimizer's, or None where they have a form of the framework's own.
    """

    framework: Framework
    way: Way
    weights: Layout
    summed: Layout
    states: Layout | None


def agree(communicator: Communicator, mine: Account) -> bool:
    """Raise where a rank's account differs from rank 0's; whether optimizer states are alike, and
    so may travel. Every rank calls it."""
    said = gathered(communicator, astuple(mine), f"starts to train by {_WAYS[mine.way]}")
    accounts = [Account(*words) for words in said]
    for rank in range(len(accounts)):
        _check("The ranks built different models", accounts, rank, lambda a: a.weights)
        _check("The ranks add up different things at each step", accounts, rank, lambda a: a.summed)
    states = [account.states for account in accounts]
    travel = all(state is not None for state in states)
    if travel:
        for rank in range(len(accounts)):
            _check("The ranks' optimizers differ", accounts, rank, lambda a: a.states or [])
    _tell(travel)
    return travel


def kind(dtype: str) -> str:
    """A dtype as it is compared: an integer's width is the framework's own business."""
    return "int64" if dtype in ("int32", "int64") else dtype


def _check(
    what: str, accounts: Sequence[Account], rank: int, part: Callable[[Account], Layout]
) -> None:
    first, other = accounts[0], accounts[rank]
    for ours, theirs in zip_longest(part(first), part(other)):
        if _bare(ours) != _bare(theirs):
            raise Desynchronized(
                f"{what}. Received, in Keras's layout: {_tell_one(ours)} on rank 0 "
                f"({first.framework}), {_tell_one(theirs)} on rank {rank} ({other.framework}). "
                "Build the same layers in the same order on every rank; only values may differ, "
                "and rank 0's are taken."
            )


def _bare(entry: tuple[str, tuple[int, ...], str] | None) -> tuple[object, ...] | None:
    """What is compared: of "NAME (KIND) ROLE" kind and role, then shape and dtype."""
    return None if entry is None else (entry[0].partition(" ")[2], tuple(entry[1]), kind(entry[2]))


def _tell_one(entry: tuple[str, tuple[int, ...], str] | None) -> str:
    return "nothing further" if entry is None else f"{entry[0]} {entry[2]}{list(entry[1])}"


@cache  # once is enough, however often a model is fitted
def _tell(states_travel: bool) -> None:
    also = "" if states_travel else "; the optimizers' states stay each rank's own"
    logger.info(
        "two frameworks, one model: every rank takes rank 0's weights now, and again as resync= "
        "says%s",
        also,
    )
