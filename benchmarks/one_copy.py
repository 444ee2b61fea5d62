"""One copy of the weights a host, beside raw DDP, dream's replicas and ranks that tell each other
nothing: an MLP of 20 million parameters, SGD with momentum and AdamW, a step's time, and the memory
of weights and optimizer state of all ranks together in terms of one rank's.

    python benchmarks/one_copy.py [--rounds 5] [--steps 30] [--ranks 2] [--markdown] [--json FILE]
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from functools import partial
from pathlib import Path

from _measure import arguments, dream_command, interleave, ratios, spread, write_json

SCRIPT = str(Path(__file__).with_name("_one_copy_rank.py"))
CONTENDERS = ("raw DDP", "dream", "dream, one_copy=True", "no communication")
OPTIMIZERS = ("SGD", "AdamW")


def main() -> int:
    parser = arguments(__doc__, rounds=5)
    parser.add_argument("--steps", type=int, default=30)
    parser.add_argument("--ranks", type=int, default=2)
    asked = parser.parse_args()
    figures = {}
    for optimizer in OPTIMIZERS:
        memory: dict[str, list[float]] = {name: [] for name in CONTENDERS}
        times = interleave(
            {name: partial(train, name, optimizer, asked.steps, asked.ranks, memory[name])
             for name in CONTENDERS},
            rounds=asked.rounds, warmup=1,
        )  # fmt: skip
        print(f"{optimizer}, {asked.ranks} ranks")
        print(ratios(times, unit="ms a step", markdown=asked.markdown))
        for name, read in memory.items():
            print(f"weights and state of all ranks, of one rank's: {spread(read)}, {name}")
        figures[optimizer] = {"seconds a step": times, "memory": memory}
    write_json(asked.json, figures)
    return 0


def train(name: str, optimizer: str, steps: int, ranks: int, memory: list[float]) -> float:
    """Return the seconds of a step, of the second half of a training. memory: is given the part
    that all ranks hold of one rank's."""
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder, "read")
        words = [str(out), name, optimizer, str(steps)]
        subprocess.run(
            [dream_command(), "run", "-n", str(ranks), SCRIPT, *words],
            env=os.environ | {"OMP_NUM_THREADS": "1"}, check=True, capture_output=True,
        )  # fmt: skip
        seconds, held = json.loads(out.read_text())
    memory.append(held)
    return float(seconds)


if __name__ == "__main__":
    sys.exit(main())
