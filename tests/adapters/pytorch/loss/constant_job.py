"""A rank: what is said as each script trains, and what strict=True says. Prints it by name."""

from __future__ import annotations

import sys

import torch
from constant_scripts import COUPLED, INNOCENT
from joined_scripts import LIKENED, TOGETHER
from kept_scripts import APART, CUT, MIXED, WRITTEN
from loss_job import difference, lines_of, refused, tell

import dream


def main(names: list[str]) -> None:
    torch.set_num_threads(1)
    with dream.strategy("mirrored") as strategy:
        pass
    coupled = {name: script for name, (script, _) in (COUPLED | MIXED | LIKENED).items()}
    scripts = {**INNOCENT, **APART, **TOGETHER, **WRITTEN, **CUT, **coupled}
    for name in names or scripts:
        script = scripts[name]
        plain = script()
        apart, said = lines_of(script)
        tell(strategy, name, [difference(plain, apart)[0], said, refused(script)])


if __name__ == "__main__":
    main(sys.argv[1:])
