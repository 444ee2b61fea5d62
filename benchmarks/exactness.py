"""How far from one device each library ends up: the same digits run, an uneven last batch.

    python benchmarks/exactness.py [--replicas 2 3] [--scripts mean sum "token mean" dropout LBFGS]
        [--markdown] [--json FILE]

MLP 64-32-10, momentum SGD, 3 epochs, global batch 64 (L-BFGS: 450) in order, 1797 samples, so
that the last batch has 5 (447). The same first weights everywhere. Scripts are the loop with the
mean over samples, and loops with something else in its place. The figure is the largest difference
of any parameter from the same framework's plain run on one device.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory

import _digits
from _measure import dream_command, table, write_json
from _torch_scripts import SCRIPTS

HERE = Path(__file__).parent
QUIET = {"TF_CPP_MIN_LOG_LEVEL": "2", "TF_ENABLE_ONEDNN_OPTS": "0", "KERAS_BACKEND": "tensorflow"}
ENVIRONMENT = os.environ | QUIET | {"OMP_NUM_THREADS": "1"}
KERAS = {
    "Keras fit, raw MirroredStrategy": "raw",
    "Keras fit, dream, one process": "dream",
    "Keras fit, dream, a process each": "ranks",
}
REFERENCE = "one device"
MEAN = "mean"
PROMISED = 1e-6
Differences = dict[str, dict[int, float | str]]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--replicas", type=int, nargs="+", default=[2, 3])
    parser.add_argument("--scripts", nargs="+", choices=list(SCRIPTS), default=list(SCRIPTS))
    parser.add_argument("--markdown", action="store_true", help="print the table as Markdown")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the differences")
    asked = parser.parse_args()
    found: Differences = {}
    for script in asked.scripts:
        found |= torch(script, asked.replicas)
        found |= keras(asked.replicas) if script == MEAN else {}
    rows = [(name, *map(_shown, figures.values())) for name, figures in found.items()]
    head = ("", *(f"{count} replicas" for count in asked.replicas))
    print(table(head, rows, markdown=asked.markdown))
    write_json(asked.json, {"largest_difference": found})
    return 0 if all(_holds(name, figures) for name, figures in found.items()) else 1


def _holds(name: str, figures: dict[int, float | str]) -> bool:
    """What dream promises."""
    within = (isinstance(figure, float) and figure <= PROMISED for figure in figures.values())
    return "dream" not in name or all(within)


def torch(script: str, counts: list[int]) -> Differences:
    """All contenders of one count share a job."""
    from _torch_exact import MAKES, NEEDS

    names = [n for n in MAKES if n != REFERENCE and (n not in NEEDS or find_spec(NEEDS[n]))]
    if script != MEAN:  # train_step takes a mean, and a ring reduces what it is given
        names = [n for n in names if n not in ("dream, train_step", "dream on the ring")]
    titles = {n: f"torch, {n}" if script == MEAN else f"torch, {script}: {n}" for n in names}
    found: Differences = {title: {} for title in titles.values()}
    with TemporaryDirectory() as folder:
        file = str(HERE / "_torch_exact.py")
        _run([sys.executable, file, folder, script, REFERENCE])
        for count in counts:
            _run([dream_command(), "run", "-n", str(count), file, folder, script, *names])
            for name, title in titles.items():
                found[title][count] = _difference(folder, name)
    return found


def keras(counts: list[int]) -> Differences:
    """A process, or a job, for each: TensorFlow has one topology in a process."""
    if find_spec("tensorflow") is None:
        return {}
    found: Differences = {name: {} for name in KERAS}
    with TemporaryDirectory() as folder:
        script = str(HERE / "_keras_exact.py")
        _run([sys.executable, script, folder, REFERENCE, "one", "1"])
        for count in counts:
            for name, kind in KERAS.items():
                ranks = [dream_command(), "run", "-n", str(count)]
                start = ranks if kind == "ranks" else [sys.executable]
                _run([*start, script, folder, name, kind, str(count)])
                found[name][count] = _difference(folder, name)
    return found


def _run(command: list[str]) -> None:
    """A run that fails says why on stderr, and leaves no file."""
    subprocess.run(command, env=ENVIRONMENT, check=False, timeout=600, stdout=subprocess.DEVNULL)


def _difference(folder: str, name: str) -> float | str:
    return _digits.difference(Path(folder, f"{name}.npz"), Path(folder, f"{REFERENCE}.npz"))


def _shown(figure: float | str) -> str:
    return figure if isinstance(figure, str) else f"{figure:.0e}"


if __name__ == "__main__":
    sys.exit(main())
