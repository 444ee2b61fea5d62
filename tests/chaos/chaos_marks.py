"""What a script under fire shares with the test that fires: how far each rank is, and orders to
misbehave. A rank writes its step into a file in place, so that it can be read at any moment."""

from __future__ import annotations

import os
import sys
import threading
import time
from pathlib import Path

ORDERS = ("raise", "leave")


class Marks:
    """A rank's side. folder: shared with the test."""

    def __init__(self, folder: str, rank: int) -> None:
        self._order = Path(folder) / f"order{rank}"
        self._steps = os.open(Path(folder) / f"steps{rank}", os.O_WRONLY | os.O_CREAT, 0o600)
        (Path(folder) / f"pid{rank}").write_text(str(os.getpid()))
        self._count = 0

    def step(self) -> None:
        """A step is done. Obeys an order, where there is one."""
        self._count += 1
        os.pwrite(self._steps, b"%012d" % self._count, 0)
        if self._order.exists():
            self._obey(self._order.read_text())

    @staticmethod
    def _obey(order: str) -> None:
        if order == "leave":
            sys.exit(0)
        # a thread that is no daemon keeps the interpreter from ending
        threading.Thread(target=time.sleep, args=[600]).start()
        raise RuntimeError("ordered to fail")


def steps(folder: Path, rank: int) -> int:
    """How far a rank is, as the test sees it."""
    try:
        return int((folder / f"steps{rank}").read_bytes() or b"0")
    except FileNotFoundError:
        return 0


def pid(folder: Path, rank: int) -> int:
    return int((folder / f"pid{rank}").read_text())
