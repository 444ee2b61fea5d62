"""What splitting a model costs: dream beside the frameworks' own parts put together by hand.

    python benchmarks/split_models.py [--rounds 15] [--steps 8] [--family tensor|keras]

Two ranks of one thread each (four of `pipeline4`, one of Keras's last table), all contenders of a
table in the same processes, in shuffled order. Beside the times stands the most memory that a rank
took, of a job of its own for each contender: from after the imports to after four steps, libraries
that it loads on the way included.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

from _measure import Times, arguments, from_ranks, ratio, spread, table, write_json

HERE = Path(__file__).parent
FAMILIES = ("fsdp", "tensor", "pipeline", "pipeline4", "gpipe")
KERAS = {
    "sharded": "Keras, sharded by DTensor",
    "tensor": "Keras, split by tensors",
    "pipeline": "Keras, in stages",
    "one_process": "Keras, in stages on two devices of one process",
    "one_process_many": "Keras, in stages on two devices of one process, batches of 1,024",
}
RANKS = {"pipeline4": 4, "one_process": 1, "one_process_many": 1}
"""Two where nothing stands here."""
MODELS = {"mlp": "residual MLP, 2M parameters", "attention": "transformer, 3M parameters"}


def main() -> int:
    parser = arguments(__doc__, rounds=15)
    parser.add_argument("--steps", type=int, default=8, help="steps in a block")
    parser.add_argument("--family", choices=(*FAMILIES, "keras"), help="only this one; default all")
    asked = parser.parse_args()
    figures: dict[str, object] = {}
    for title, script, *words in _jobs(asked.family):
        line = (*words, str(asked.rounds), str(asked.steps))
        ranks = RANKS.get(words[0], 2)
        times: Times = from_ranks(ranks, HERE / script, *line)
        memory = {
            name: float(from_ranks(ranks, HERE / script, *line, name))
            for name in times
            if not name.endswith("again")
        }
        figures[title] = {"seconds_per_step": times, "peak_mb": memory}
        print(f"\n{title}\n{_table(times, memory, markdown=asked.markdown)}")
    write_json(asked.json, figures)
    return 0


def _jobs(family: str | None) -> Iterator[tuple[str, ...]]:
    """(title, script, its words but the last two) of each table that is asked for."""
    for name in [family] if family in FAMILIES else FAMILIES if family is None else ():
        for model, what in MODELS.items():
            yield f"{name}: {what}", "_split_steps.py", name, model
    for name, what in KERAS.items() if family in (None, "keras") else ():
        yield f"{what}: MLP, 2M parameters", "_split_keras.py", name


def _table(times: Times, memory: dict[str, float], *, markdown: bool) -> str:
    baseline = next(iter(times))
    rows = [
        (
            name,
            str(spread(taken).scaled(1000)),
            str(ratio(times, name, baseline)),
            f"{memory[name]:.0f}" if name in memory else "",
        )
        for name, taken in times.items()
    ]
    head = ("", "ms a step", f"against {baseline}", "peak MB a rank")
    return table(head, rows, markdown=markdown)


if __name__ == "__main__":
    sys.exit(main())
