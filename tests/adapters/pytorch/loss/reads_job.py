"""A rank: what is said as each script trains. Prints it by name."""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import partial

import torch
from loss_job import lines_of, tell
from loss_scripts import Trained
from reads_scripts import OWN, QUIET

import dream


def main(names: list[str]) -> None:
    torch.set_num_threads(1)
    with dream.strategy("mirrored") as strategy:
        pass
    scripts = QUIET | OWN
    for name in names or scripts:
        tell(strategy, name, lines_of(partial(trained, scripts[name]))[1])


def trained(script: Callable[[], object]) -> Trained:
    script()
    return [], []


if __name__ == "__main__":
    main(sys.argv[1:])
