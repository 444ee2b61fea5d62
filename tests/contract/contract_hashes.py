"""A hash of the parameters that each case ends with, so that code that was moved can be held bit
for bit against the code before it.

DREAM_CONTRACT_HASHES=FILE pytest tests/contract    appends a line a cell, mode, case and rank
python tests/contract/contract_hashes.py compare BEFORE AFTER    ends with 1 where any differs

The same machine, versions and seeds are needed. Run BEFORE twice to see which cases are steady.
"""

from __future__ import annotations

import hashlib
import json
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

if TYPE_CHECKING:
    from contract_job import Job

Place = tuple[str, str, int]
"""A cell, one of its cases, a rank."""


class Line(NamedTuple):
    cell: str
    case: str
    rank: int
    hash: str


def hashes(job: Job) -> list[Line]:
    """The hashes of a job's cases on each rank, in order."""
    return [
        Line(str(job.cell), case, rank, _hash_of(*outcome))
        for (case, rank), outcome in sorted(job.outcomes.items())
    ]


def record(job: Job) -> None:
    """Append the hashes of a job's cases, where DREAM_CONTRACT_HASHES names a file."""
    path = os.environ.get("DREAM_CONTRACT_HASHES")
    lines = hashes(job)
    if path and lines:
        text = "".join(json.dumps(line._asdict()) + "\n" for line in lines)
        with Path(path).open("ab", buffering=0) as file:  # one write: other rooms append too
            file.write(text.encode())


def _hash_of(kind: str, figures: Any) -> str:
    """`error` for a case that failed, `none` for one without parameters."""
    if kind != "figures":
        return "error"
    if not isinstance(figures, Mapping) or "parameters" not in figures:
        return "none"
    whole = hashlib.sha256()
    _add(whole, figures["parameters"])
    return whole.hexdigest()


def _add(whole: Any, value: Any) -> None:
    if isinstance(value, Mapping):
        for name, part in value.items():
            whole.update(f"{name}:".encode())
            _add(whole, part)
    elif isinstance(value, list | tuple):
        for part in value:
            _add(whole, part)
    else:
        array = np.asarray(value)
        whole.update(f"{array.dtype.str}{array.shape}".encode())
        whole.update(np.ascontiguousarray(array).tobytes())


def read(path: Path) -> dict[Place, set[str]]:
    """Every hash that was recorded; more than one where runs of the same file differ."""
    found: dict[Place, set[str]] = {}
    for text in path.read_text().splitlines():
        line = json.loads(text)
        found.setdefault((line["cell"], line["case"], line["rank"]), set()).add(line["hash"])
    return found


def compare(before: dict[Place, set[str]], after: dict[Place, set[str]]) -> list[str]:
    """A line for each place that differs in both, then a line of counts."""
    both = sorted(before.keys() & after.keys())
    unsteady = [place for place in both if len(before[place]) > 1]
    different = [place for place in both if not before[place] & after[place]]
    lines = ["{}  {}  rank {}: differs".format(*place) for place in different]
    lines += ["{}  {}  rank {}: unsteady before".format(*place) for place in unsteady]
    one_side = len(before.keys() ^ after.keys())
    counts = f"{len(both)} compared, {len(different)} differ, {len(unsteady)} unsteady"
    return [*lines, f"{counts}, {one_side} on one side only"]


def main(arguments: list[str]) -> int:
    if len(arguments) != 3 or arguments[0] != "compare":
        print(f"Usage: contract_hashes.py compare BEFORE AFTER. Received: {arguments}.")
        return 2
    before, after = (read(Path(name)) for name in arguments[1:])
    lines = compare(before, after)
    print("\n".join(lines))
    both = before.keys() & after.keys()
    return 0 if both and all(before[place] & after[place] for place in both) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
