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
from contract_names import runs

MODULES = {
    "torch": "contract_torch",
    "keras_tf": "contract_keras",
    "keras_torch": "contract_keras",
    "raw_torch": "contract_raw_torch",
    "raw_keras_tf": "contract_raw_keras",
}
PATIENCE = 200.0  # seconds that a rank done with a case waits for the others
ONLY = os.environ.get("CONTRACT_ONLY", "").split()  # for whoever looks into a case


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
            wanted = runs(cell, case.name) and case.name in (ONLY or [case.name])
            if wanted and f"{mode}.{case.name}" not in skipped:
                module.start()
                _run(case, env, seconds)


def _run(case: Case, env: Env, seconds: float) -> None:
    """One case. It may fail, and the next one runs; if it hangs, the process ends."""
    place = env.folder / f"{env.mode}.{case.name}.{env.rank}"
    place.with_name(f"{place.name}.begun").touch()
    faulthandler.dump_traceback_later(seconds, exit=True)
    begin = time.process_time()
    try:
        outcome: tuple[str, Any] = ("figures", case.run(env))
    except Exception:
        outcome = ("error", traceback.format_exc())
    faulthandler.cancel_dump_traceback_later()
    part = place.with_name(f"{place.name}.part")
    part.write_bytes(pickle.dumps((*outcome, time.process_time() - begin)))
    part.replace(place)
    if case.ends_job:
        _leave(0)
    if not _all_alike(case, env, outcome[0]):
        _leave(3)


def _all_alike(case: Case, env: Env, kind: str) -> bool:
    """Wait for the other ranks; whether all succeeded or all failed. Ranks of which only some
    failed are out of step, and what they did next would prove nothing."""
    end = time.monotonic() + PATIENCE
    for rank in range(env.ranks):
        other = env.folder / f"{env.mode}.{case.name}.{rank}"
        while not other.exists():
            if time.monotonic() > end:
                return False
            time.sleep(0.003)
        if pickle.loads(other.read_bytes())[0] != kind:
            return False
    return True


def _leave(code: int) -> None:
    """End here, whatever exit handlers would wait for."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


if __name__ == "__main__":
    main()
