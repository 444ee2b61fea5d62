"""One rank's process: started in a group of its own, ended with everything it started."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from dream.launch.child import PARENT, REPORT, looks_like_a_victim
from dream.launch.ending import Ending
from dream.launch.output import Output

CHILD = str(Path(__file__).with_name("child.py"))
_STREAM_SECONDS = 0.5


class Process:
    """A rank. Never forked from this interpreter's state: a fresh one is started."""

    def __init__(
        self,
        rank: int,
        command: Sequence[str],
        environ: Mapping[str, str],
        report: Path,
        output: Output,
    ) -> None:
        self.rank = rank
        self.output = output
        self._report = report
        self._code: int | None = None
        self._ended_at = 0.0
        self._ending: Ending | None = None
        self._reaping = threading.Lock()
        self._process = subprocess.Popen(
            [sys.executable, CHILD, *command],
            env={**environ, REPORT: str(report), PARENT: str(os.getpid())},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
        )
        assert self._process.stdout is not None
        assert self._process.stderr is not None
        output.read(self._process.stdout, self._process.stderr)

    @property
    def group(self) -> int:
        return self._process.pid

    @property
    def running(self) -> bool:
        return self._code is None

    def watch(self, ended: Callable[[int], None]) -> None:
        """Call `ended(rank)` from a thread once the process has ended."""
        threading.Thread(target=self._wait, args=(ended,), daemon=True).start()

    def _wait(self, ended: Callable[[int], None]) -> None:
        os.waitid(os.P_PID, self.group, os.WEXITED | os.WNOWAIT)
        self._ended_at = time.time()
        with self._reaping:
            # not reaped yet, so the number still means this group: what is left of it goes too
            self._signal(signal.SIGKILL)
            self._code = self._process.wait()
        ended(self.rank)

    def send(self, number: signal.Signals) -> None:
        """A signal to the rank and all it started, while it runs."""
        with self._reaping:
            if self._code is None:
                self._signal(number)

    def _signal(self, number: signal.Signals) -> None:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.group, number)

    def ending(self) -> Ending | None:
        """How it ended, or what it reported before it does; None while all is well."""
        if self._ending is None:
            code = self._code
            ending = self._ending_of(code)
            if code is None:
                return ending
            self._ending = ending
        return self._ending

    def _ending_of(self, code: int | None) -> Ending | None:
        kind, time_, text = self._read_report()
        if kind == "left" and not code:
            return Ending(self.rank, 0, time_)
        if kind in ("error", "victim") and code != 0:
            return Ending(self.rank, code, time_, kind == "victim", text, raised=True)
        if not code:
            return None if code is None else Ending(self.rank, 0, self._ended_at)
        self.output.finish(_STREAM_SECONDS)
        text = self.output.tail
        victim = code != -signal.SIGKILL and looks_like_a_victim(None, text)
        return Ending(self.rank, code, self._ended_at, victim, text)

    def _read_report(self) -> tuple[str, float, str]:
        """What the rank told: "left", "error", "victim", or "" for nothing; when; its words."""
        try:
            head, _, text = self._report.read_text(encoding="utf-8").partition("\n")
        except FileNotFoundError:
            return "", 0.0, ""
        kind, _, seconds = head.partition(" ")
        return kind, float(seconds), text
