"""A rank: each script without dream, and again in the block. Prints the difference of each."""

from __future__ import annotations

import json
import logging
import sys
from collections.abc import Callable
from functools import partial

import torch
from loss_scripts import (
    BY_HAND,
    NOT_UNDERSTOOD,
    QUIET,
    SCRIPTS,
    Trained,
    differentiated_over_a_number_that_was_alike,
    mean_times_rows,
    nothing_that_counts,
    over_a_count_and_one,
    over_a_tensor_of_five,
    over_positives_or_one_as_a_number,
)

import dream


def difference(plain: Trained, ours: Trained) -> list[float]:
    """[of parameters, of what was printed]."""
    apart = max(float((a - b).abs().max()) for a, b in zip(plain[0], ours[0], strict=True))
    if len(plain[1]) != len(ours[1]):
        return [apart, float("inf")]
    pairs = zip(plain[1], ours[1], strict=True)
    return [apart, max((abs(a - b) / max(1.0, abs(a)) for a, b in pairs), default=0.0)]


def refused(script: Callable[[], Trained], *, strict: bool = True) -> str:
    """What it is refused by."""
    try:
        with dream.strategy("mirrored", strict=strict):
            script()
    except dream.DreamError as error:
        return str(error)
    return ""


def lines_of(script: Callable[[], Trained], *, strict: bool = False) -> tuple[Trained, list[str]]:
    """What a script trains, and what is said meanwhile."""
    said: list[str] = []
    handler = logging.Handler()
    handler.emit = lambda record: said.append(record.getMessage())  # type: ignore[method-assign]
    logging.getLogger("dream").addHandler(handler)
    try:
        with dream.strategy("mirrored", strict=strict):
            made = script()
    finally:
        logging.getLogger("dream").removeHandler(handler)
    return made, said


def main(names: list[str]) -> None:
    torch.set_num_threads(1)
    with dream.strategy("mirrored") as strategy:
        over_a_tensor_of_five()
    for name in names or SCRIPTS:
        made, said = lines_of(SCRIPTS[name])
        tell(strategy, name, difference(SCRIPTS[name](), made))
        if name in QUIET:
            tell(strategy, f"said by {name}", said)
    for name, by_hand in BY_HAND.items():
        plain = by_hand()
        with dream.strategy("mirrored") as made_for:
            tell(strategy, name, difference(plain, by_hand(made_for)))
    named = (over_a_count_and_one, mean_times_rows, differentiated_over_a_number_that_was_alike)
    for script in (*named, over_positives_or_one_as_a_number):
        tell(strategy, f"said by {script.__name__}", lines_of(script)[1])
    for name, (script, _) in NOT_UNDERSTOOD.items():
        with dream.strategy("mirrored") as strategy:
            script()
        tell(strategy, name, refused(script))
    tell(strategy, "branches", refused(partial(nothing_that_counts, 0.01), strict=False))


def tell(strategy: dream.Strategy, name: str, what: object) -> None:
    if strategy.topology.rank == 0:
        print(json.dumps([name, what]), flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
