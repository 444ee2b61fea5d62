"""What dream's communicator costs: its all_reduce beside the transport's own, in one run.

    python benchmarks/collectives.py [--rounds 15] [--calls 2000] [--family gloo] [--sizes 4096]

Two ranks of one thread each; sums of float32. First single calls on 4 KB, in turns: what they
take on the clock, and of the calling thread's own time (waiting left out, spinning not); then
the same where nobody is waited for, in a group of one rank. Then larger sizes, in blocks. Torch's
raw calls work in place, so dream is read with `out=x` beside them, and without beside raw calls
on a copy.
"""

from __future__ import annotations

import sys
from argparse import Namespace
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from _measure import Times, arguments, from_ranks, ratios, spread, table, write_json

SCRIPT = Path(__file__).with_name("_collectives_ranks.py")
SIZES = [4096, 204_800, 1 << 20, 100 << 20]
FAMILIES = {
    "gloo": ("torch", "gloo", "torch"),
    "ring": ("torch", "horovod", "horovod"),
    "grpc": ("tensorflow", "grpc", "tensorflow"),
    "ring, TensorFlow": ("tensorflow", "horovod", "horovod"),
}
"""Name -> framework, transport, the package that it needs."""


def main() -> int:
    parser = arguments(__doc__, rounds=15)
    parser.add_argument("--calls", type=int, default=2000, help="single calls; 0 for none")
    parser.add_argument("--family", choices=FAMILIES, help="only this one; default all")
    parser.add_argument("--sizes", type=int, nargs="*", default=SIZES, help="in bytes")
    asked = parser.parse_args()
    found = {}
    for family in [asked.family] if asked.family else present():
        found[family] = read(family, asked)
        show(family, found[family], markdown=asked.markdown)
    write_json(asked.json, {"seconds": found})
    return 0


def present() -> list[str]:
    """The families whose packages are installed."""
    return [name for name, (*_, needs) in FAMILIES.items() if find_spec(needs) is not None]


def read(family: str, asked: Namespace) -> dict[str, Any]:
    framework, transport, _ = FAMILIES[family]
    words = (framework, transport, str(asked.rounds), str(asked.calls), *map(str, asked.sizes))
    figures: dict[str, Any] = from_ranks(2, SCRIPT, *words)
    return figures


def show(family: str, figures: Mapping[str, Any], *, markdown: bool) -> None:
    if "calls" in figures:
        clock, own = (_kinds(figures["calls"][name]) for name in ("clock", "own"))
        for kind in clock:
            print(f"\n{family}, single calls on 4 KB {kind}")
            print(_calls(clock[kind], own[kind], markdown=markdown))
        alone = [(name.replace("|", " "), f"{us:.2f}") for name, us in figures["alone"].items()]
        met = ("two ranks meet on the page (barrier)", f"{figures['meeting']:.2f}")
        print(f"\n{family}, us where nobody is waited for, and of a meeting")
        print(table(("", "us a call"), [*alone, met], markdown=markdown))
    for size, times in figures.get("sizes", {}).items():
        for kind, taken in _kinds(times).items():
            print(f"\n{family}, {int(size):,} bytes {kind}")
            print(ratios(taken, unit="ms a call", markdown=markdown))


def _kinds(times: Times) -> dict[str, Times]:
    """`contender|kind` -> seconds, by kind."""
    found: dict[str, Times] = {}
    for name, taken in times.items():
        contender, _, kind = name.partition("|")
        found.setdefault(kind, {})[contender] = taken
    return found


def _calls(clock: Times, own: Times, *, markdown: bool) -> str:
    """Medians, and by how much they are above the first one's."""
    rows = []
    for name in clock:
        cells = []
        for times in (clock, own):
            us = spread(times[name]).scaled(1e6)
            more = us.median - spread(times["raw"]).median * 1e6
            cells += [f"{us.median:.1f} ({us.low:.1f} to {us.high:.1f})", f"{more:+.1f}"]
        rows.append((name, *cells))
    return table(("", "us a call", "more", "own us", "more"), rows, markdown=markdown)


if __name__ == "__main__":
    sys.exit(main())
