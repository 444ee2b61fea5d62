"""A rank of a contract job: runs every case, and leaves each one's figures in a file.

Usage: contract_worker.py CELL FOLDER SECONDS SKIPPED...
"""

from __future__ import annotations

import faulthandler
import os
import pickle
import sys
import time
import traceback
from importlib import import_module
from pathlib import Path
from typing import Any

from contract_case import Case, Cases, Env, Mode
from contract_cells import Cell

MODULES = {
    "torch": "contract_torch",
    "keras_tf": "contract_keras",
    "keras_torch": "contract_keras",
    "raw_torch": "contract_raw_torch",
    "raw_keras_tf": "contract_raw_keras",
}


def main() -> None:
    cell, folder, seconds = Cell.load(sys.argv[1]), Path(sys.argv[2]), float(sys.argv[3])
    skipped = frozenset(sys.argv[4:])
    rank = int(os.environ.get("RANK", "0"))
    module = import_module(MODULES[cell.kind])
    cases: Cases = module.CASES
    modes: tuple[Mode, ...] = ("plain", "single") if cell.strategy == "single" else ("cell",)
    for mode in modes:
        env = Env(mode, cell, rank, folder)
        for case in cases.of(mode):
            if f"{mode}.{case.name}" not in skipped:
                module.start(case)
                _run(case, env, seconds)


def _run(case: Case, env: Env, seconds: float) -> None:
    """One case. It may fail, and the next one runs; if it hangs, the process ends."""
    place = env.folder / f"{env.mode}.{case.name}.rank{env.rank}"
    place.with_suffix(f"{place.suffix}.begun").touch()
    faulthandler.dump_traceback_later(seconds, exit=True)
    begin = time.monotonic()
    try:
        outcome: tuple[str, Any] = ("figures", case.run(env))
    except Exception:
        outcome = ("error", traceback.format_exc())
    faulthandler.cancel_dump_traceback_later()
    part = place.with_suffix(f"{place.suffix}.part")
    part.write_bytes(pickle.dumps((*outcome, time.monotonic() - begin)))
    part.replace(place)
    if case.ends_job:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(0)


if __name__ == "__main__":
    main()
