"""What a training step costs: dream beside raw DDP, Accelerate, Fabric, bare Horovod and Keras.

    python benchmarks/step_overhead.py [--rounds 15] [--steps 64] [--family ring] [--model CNN]

Torch: two ranks of one thread each, all contenders of a table in the same two processes; each
model is read twice, with the loader in the loop and on batches that were read before. Keras: one
process for each contender, two logical CPUs in each, which take turns; on two ranks two processes
for each figure, the median of three epochs. A block is one epoch; blocks follow one another in
shuffled order.
"""

from __future__ import annotations

import sys
from argparse import Namespace
from collections.abc import Callable
from functools import partial
from importlib.util import find_spec
from pathlib import Path

from _measure import Times, arguments, from_ranks, interleave, ratios, write_json

Tables = dict[str, Times]
HERE = Path(__file__).parent


def main() -> int:
    parser = arguments(__doc__, rounds=15)
    parser.add_argument("--steps", type=int, default=64, help="steps in a block of the MLP")
    parser.add_argument("--family", choices=FAMILIES, help="only this one; default all")
    parser.add_argument("--model", default="", help="only models with this in their name")
    parser.add_argument(
        "--clock", choices=("wall", "cpu"), default="wall",
        help="cpu: processor time, of torch's, where other work runs beside it",
    )  # fmt: skip
    asked = parser.parse_args()
    figures: Tables = {}
    for family in [asked.family] if asked.family else present():
        tables = FAMILIES[family](asked)
        figures |= {f"{family}: {title}": times for title, times in tables.items()}
        for title, times in tables.items():
            print(f"\n{title}\n{ratios(times, unit='ms a step', markdown=asked.markdown)}")
    write_json(asked.json, {"seconds_per_step": figures})
    return 0


def gloo(asked: Namespace) -> Tables:
    return _torch("gloo", asked)


def ring(asked: Namespace) -> Tables:
    return _torch("ring", asked)


def _torch(family: str, asked: Namespace) -> Tables:
    words = (family, str(asked.rounds), str(asked.steps), asked.model, asked.clock)
    tables: Tables = from_ranks(2, HERE / "_torch_steps.py", *words)
    return tables


def memory(asked: Namespace) -> Tables:
    return _torch("memory", asked)


def compiled(asked: Namespace) -> Tables:
    return _torch("compiled", asked)


def keras(asked: Namespace) -> Tables:
    from _keras_steps import compare

    return compare(rounds=asked.rounds, steps=asked.steps, model=asked.model)


def keras_ranks(asked: Namespace) -> Tables:
    from _keras_ranks import CONTENDERS
    from _keras_trainer import MODELS

    def taken(*words: str) -> float:
        found: float = from_ranks(2, HERE / "_keras_ranks.py", *words, str(asked.steps))
        return found

    return {
        f"Keras on two ranks, beside {beside}, {model}": interleave(
            {who: partial(taken, beside, who, model) for who in contenders},
            rounds=asked.rounds, warmup=0,
        )
        for beside, contenders in CONTENDERS.items()
        for model in MODELS
        if asked.model in model
    }  # fmt: skip


def present() -> list[str]:
    """The families whose packages are installed."""
    return [name for name in FAMILIES if find_spec(NEEDS[name]) is not None]


FAMILIES: dict[str, Callable[[Namespace], Tables]] = {
    "gloo": gloo,
    "memory": memory,
    "ring": ring,
    "compiled": compiled,
    "keras": keras,
    "keras_ranks": keras_ranks,
}
NEEDS = {
    "gloo": "torch",
    "memory": "torch",
    "ring": "horovod",
    "compiled": "torch",
    "keras": "tensorflow",
    "keras_ranks": "horovod",
}

if __name__ == "__main__":
    sys.exit(main())
