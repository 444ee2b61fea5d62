"""A rank: what is said as each script trains, and what strict=True says. Prints it by name."""

from __future__ import annotations

import sys
from collections.abc import Callable

import torch
from constant_scripts import COUPLED, INNOCENT
from joined_scripts import FOUND_LATE, LIKENED, TOGETHER
from kept_scripts import APART, CUT, MIXED, WRITTEN
from loss_job import difference, lines_of, refused, tell
from loss_scripts import Trained
from single_scripts import SINGLES

import dream


def main(names: list[str]) -> None:
    torch.set_num_threads(1)
    with dream.strategy("mirrored") as strategy:
        pass
    coupled = {name: script for name, (script, _) in (COUPLED | MIXED | LIKENED).items()}
    innocent = INNOCENT | APART | TOGETHER | SINGLES
    scripts = {**innocent, **WRITTEN, **CUT, **FOUND_LATE, **coupled}
    for name in names or scripts:
        script = scripts[name]
        plain = script()
        if name in innocent:
            tell(strategy, name, taken(script, plain))
            continue
        made, said = lines_of(script)
        tell(strategy, name, [difference(plain, made)[0], said, refused(script)])


def taken(script: Callable[[], Trained], plain: Trained) -> list[object]:
    """The same of what is refused by no word: strict=True says all that is said without it."""
    try:
        made, said = lines_of(script, strict=True)
    except dream.DreamError as error:
        return [float("inf"), [], str(error)]
    return [difference(plain, made)[0], said, ""]


if __name__ == "__main__":
    main(sys.argv[1:])
