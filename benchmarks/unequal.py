"""One of two ranks is four times slower: equal shares, shares by hand and shares that follow the
ranks' speeds, beside two ranks of one speed. The slower one computes each of its samples four times
over in forward and backward, so that what is timed is work and not sleep.

    python benchmarks/unequal.py [--keras tensorflow|torch] [--rounds 5] [--steps 120]
                                 [--markdown] [--json FILE]
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from functools import partial
from pathlib import Path

from _measure import arguments, dream_command, interleave, ratios, write_json

SCRIPT, KERAS_SCRIPT = (
    str(Path(__file__).with_name(name)) for name in ("_unequal_rank.py", "_unequal_keras_rank.py")
)
SLOWER = 4
CONTENDERS = {
    "two even ranks": ({}, 1),
    "one slower": ({}, SLOWER),
    "one slower, shares=[4, 1]": ({"shares": [SLOWER, 1]}, SLOWER),
    "one slower, shares='auto'": ({"shares": "auto"}, SLOWER),
}


def main() -> int:
    parser = arguments(__doc__, rounds=5)
    parser.add_argument("--steps", type=int, default=120)
    parser.add_argument("--keras", metavar="BACKEND", help="fit of a Keras model, on a backend")
    asked = parser.parse_args()
    times = interleave(
        {name: partial(train, options, times, asked.steps, asked.keras)
         for name, (options, times) in CONTENDERS.items()},
        rounds=asked.rounds, warmup=1,
    )  # fmt: skip
    print(ratios(times, unit="ms a step", markdown=asked.markdown))
    write_json(asked.json, {"seconds a step": times})
    return 0


def train(options: dict[str, object], slower: int, steps: int, keras: str | None) -> float:
    """Return the seconds of a step, of the second half of a training."""
    backend = {"KERAS_BACKEND": keras} if keras else {}
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder, "seconds")
        words = [str(out), json.dumps(options), str(slower), str(steps)]
        subprocess.run(
            [dream_command(), "run", "-n", "2", KERAS_SCRIPT if keras else SCRIPT, *words],
            env=os.environ | {"OMP_NUM_THREADS": "1"} | backend, check=True, capture_output=True,
        )  # fmt: skip
        return float(out.read_text())


if __name__ == "__main__":
    sys.exit(main())
