"""A stream whose samples cost 0.7 ms each to decode: read whole by every rank, and in parts.

python benchmarks/sharded_input.py [--rounds 5] [--samples 2048] [--markdown] [--json FILE]
"""

from __future__ import annotations

import sys
from functools import partial
from pathlib import Path

from _measure import arguments, from_ranks, interleave, ratios, write_json

RANK = Path(__file__).with_name("_sharded_input_rank.py")
CONTENDERS = {
    "one rank": (1, "whole"),
    "two ranks, whole": (2, "whole"),
    "two ranks, in parts": (2, "sharded"),
    "one rank, in parts": (1, "sharded"),
}


def main() -> int:
    parser = arguments(__doc__, rounds=5)
    parser.add_argument("--samples", type=int, default=2048)
    asked = parser.parse_args()
    times = interleave(
        {name: partial(train, ranks, how, asked.samples)
         for name, (ranks, how) in CONTENDERS.items()},
        rounds=asked.rounds, warmup=0,
    )  # fmt: skip
    print(ratios(times, unit="s", markdown=asked.markdown))
    write_json(asked.json, {"seconds an epoch": times})
    return 0


def train(ranks: int, how: str, samples: int) -> float:
    """Return the seconds of an epoch, of the second one."""
    return float(from_ranks(ranks, RANK, how, str(samples)))


if __name__ == "__main__":
    sys.exit(main())
