"""What an all-reduce on one host costs: shared memory beside a copy, gloo and Horovod.

    python benchmarks/shared_memory.py [--rounds 15] [--ranks 2] [--sizes 4096,204800]

float32, in place, sum; ranks of one thread each. "copy" is a memcpy of as many bytes on every rank
at the same time. All contenders of a table are in the same processes, and take turns in an order
drawn afresh each round.
"""

from __future__ import annotations

import sys
from pathlib import Path

from _measure import Times, arguments, from_ranks, ratio, spread, table, write_json

HERE = Path(__file__).parent
SIZES = (4096, 204_800, 1 << 20, 11_600_000, 100_000_000)
RANKS = (2, 4)


def main() -> int:
    parser = arguments(__doc__, rounds=15)
    parser.add_argument("--ranks", type=int, help="only so many; default 2, then 4")
    parser.add_argument("--sizes", default=",".join(map(str, SIZES)), help="bytes, with commas")
    asked = parser.parse_args()
    figures: dict[str, Times] = {}
    for ranks in [asked.ranks] if asked.ranks else RANKS:
        script, words = HERE / "_shared_memory_ranks.py", (str(asked.rounds), asked.sizes)
        for size, times in from_ranks(ranks, script, *words).items():
            title = f"{int(size):,} bytes, {ranks} ranks"
            figures[title] = times
            print(f"\n{title}\n{compared(times, markdown=asked.markdown)}", flush=True)
    write_json(asked.json, {"seconds_per_call": figures})
    return 0


def compared(times: Times, *, markdown: bool) -> str:
    """Each against the copy and against gloo, round by round."""
    rows = [
        (
            name,
            str(spread(taken).scaled(1000)),
            *(str(ratio(times, name, other)) for other in ("copy", "gloo")),
        )
        for name, taken in times.items()
    ]
    return table(("", "ms", "against copy", "against gloo"), rows, markdown=markdown)


if __name__ == "__main__":
    sys.exit(main())
