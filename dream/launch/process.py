"""A rank's process, and what it reports of its end over a pipe of their own.

It is started in a group of its own, and ended with everything it started. `child.py` is the side
that reports.
"""

from __future__ import annotations

import contextlib
import os
import signal
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import final

from dream._errors import WorkerFailed
from dream.launch.child import looks_like_a_victim
from dream.launch.ending import Ending
from dream.launch.forks.forked import Forked, start
from dream.launch.output import Output

_CHUNK = 1 << 16
CHILD = str(Path(__file__).with_name("child.py"))
_STREAM_SECONDS = 0.5


@dataclass(frozen=True, slots=True)
class RankReport:
    """How a rank ends, told before it does.

    kind: "left", "error" or "victim"; or "thread": one of its threads raised, and it goes on.
    code: its exit code to be. time: seconds since the epoch. step: that it was in.
    text: its traceback.
    came: when it was read, by the monotonic clock.
    """

    kind: str
    code: int
    time: float
    step: int
    text: str
    came: float


@final
class ReportPipe:
    """The launcher's side of the pipe, read by a thread of its own: a report is known as soon as
    it is there, and nothing is asked for in the meantime."""

    def __init__(self) -> None:
        self._source, self.sink = os.pipe()
        """sink: what the rank inherits."""
        os.set_blocking(self._source, False)
        self._over = False
        self._held = bytearray()
        self._thread: threading.Thread | None = None

    def listen(self, told: Callable[[RankReport], None]) -> None:
        """Call `told` from a thread, for each."""
        self._thread = threading.Thread(target=self._listen, args=(told,), daemon=True)
        self._thread.start()

    def finish(self) -> None:
        """The rank has ended: all it told is in the pipe. Return once it has been read."""
        self._over = True
        os.write(self.sink, b"\0")  # wakes the thread: children of the rank may hold the pipe open
        if self._thread is not None:
            self._thread.join()
        self.close()

    def close(self) -> None:
        os.close(self._source)
        os.close(self.sink)

    def _listen(self, told: Callable[[RankReport], None]) -> None:
        import select

        ready = select.poll()
        ready.register(self._source, select.POLLIN)
        while True:
            over = self._over  # before reading: what comes after is nobody's
            self._read()
            while (report := self._next()) is not None:
                told(report)
            if over:
                return
            if not self._over:  # else what would wake it may have been read already
                ready.poll()

    def _read(self) -> None:
        try:
            while chunk := os.read(self._source, _CHUNK):
                self._held += chunk
        except BlockingIOError:
            return

    def _next(self) -> RankReport | None:
        """Return the first that is whole. Of a rank that was killed in its midst the rest lacks."""
        head, line, rest = bytes(self._held).partition(b"\n")
        if not line:
            return None
        kind, code, seconds, step, size = head.decode().split(" ")
        if len(rest) < int(size):
            return None
        self._held = bytearray(rest[int(size) :])
        text = rest[: int(size)].decode(errors="replace")
        return RankReport(kind, int(code), float(seconds), int(step), text, time.monotonic())


@final
class Process:
    """A rank. Never forked from this interpreter's state: started fresh, or by a fork server."""

    def __init__(
        self, rank: int, command: Sequence[str], environ: Mapping[str, str], output: Output
    ) -> None:
        """WorkerFailed where the system starts no more processes."""
        self.rank = rank
        self.output = output
        self._reports = ReportPipe()
        self._report: RankReport | None = None
        self._code: int | None = None
        self._ended_at = 0.0
        self._ending: Ending | None = None
        self._reaping = threading.Lock()
        try:
            self._process = start([CHILD, *command], environ, self._reports.sink)
        except OSError as error:
            self._reports.close()
            raise WorkerFailed(
                f"The operating system could not start rank {rank}. Received: {error.strerror}. "
                "Check its limits (`ulimit -a`) and the size of the environment.",
                rank=rank,
            ) from error
        assert self._process.stdout is not None
        assert self._process.stderr is not None
        output.read(self._process.stdout, self._process.stderr)

    @property
    def origin(self) -> str:
        """Where its interpreter came from, in words."""
        if isinstance(self._process, Forked):
            return "is forked from a parent that has imported its framework"
        why = self._process.why
        return "starts in an interpreter of its own" + (f": {why}" if why else "")

    @property
    def group(self) -> int:
        return self._process.pid

    @property
    def running(self) -> bool:
        return self._code is None

    @property
    def stopped(self) -> bool:
        """Whether it stands still by SIGSTOP, a terminal or a debugger, as far as /proc tells."""
        try:
            text = Path(f"/proc/{self.group}/stat").read_text(errors="replace")
        except OSError:
            return False
        return text.rpartition(")")[2].split()[:1] in (["T"], ["t"])

    def watch(
        self,
        changed: Callable[[int], None],
        thread_failed: Callable[[int, str], None] | None = None,
    ) -> None:
        """Call, from a thread, `changed(rank)` once the process has told how it ends, and once it
        has ended; `thread_failed(rank, traceback)` where an error ended one of its threads."""

        def told(report: RankReport) -> None:
            if report.kind == "thread":
                if thread_failed is not None:
                    thread_failed(self.rank, report.text)
            else:
                self._report = report
                changed(self.rank)

        self._reports.listen(told)
        threading.Thread(target=self._wait, args=(changed,), daemon=True).start()

    def _wait(self, changed: Callable[[int], None]) -> None:
        self._process.wait_for_end()
        self._ended_at = time.time()
        self._reports.finish()
        with self._reaping:
            # not reaped yet, so the number still means this group: what is left of it goes too
            self._signal_group(signal.SIGKILL)
            self._code = self._process.wait()
        changed(self.rank)

    def ask(self, number: signal.Signals) -> None:
        """Signal the rank's own process while it runs, which may still need its children."""
        with self._reaping, contextlib.suppress(ProcessLookupError, PermissionError):
            if self._code is None:
                os.kill(self.group, number)
                os.kill(self.group, signal.SIGCONT)  # one that is stopped would not hear of it

    def kill(self) -> None:
        """End the rank and all it started, if it still runs."""
        with self._reaping:
            if self._code is None:
                self._signal_group(signal.SIGKILL)

    def _signal_group(self, number: signal.Signals) -> None:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.group, number)

    @property
    def stays(self) -> float:
        """For how many seconds it has been running since it told of an error that ends it."""
        report = self._report
        if not self.running or report is None or report.kind == "left":
            return 0.0
        return time.monotonic() - report.came

    def ending(self) -> Ending | None:
        """Return how it ended, or what it reported before; None while all is well."""
        if self._ending is None:
            code = self._code
            ending = self._ending_of(code)
            if code is None:
                return ending
            self._ending = ending
        return self._ending

    def _ending_of(self, code: int | None) -> Ending | None:
        told = self._report
        if told is not None and told.kind == "left" and code in (None, told.code):
            return Ending(self.rank, told.code, told.time)
        if told is not None and told.kind != "left" and code != 0:
            if code is not None and code < 0:
                code = told.code  # a signal ended it on its way out: ours, or its framework's
            return Ending(
                self.rank, code, told.time, told.kind == "victim", told.text, raised=True,
                step=told.step, wrote="" if told.text or code is None else self._written(),
            )  # fmt: skip
        if not code:
            return None if code is None else Ending(self.rank, 0, self._ended_at)
        text = self._written()
        victim = code != -signal.SIGKILL and looks_like_a_victim(None, text)
        return Ending(self.rank, code, self._ended_at, victim, text)

    def _written(self) -> str:
        self.output.finish(_STREAM_SECONDS)
        return self.output.tail

    def has_shown(self, text: str) -> bool:
        """Whether the end of a text of its own is on screen."""
        end = text.rstrip().rpartition("\n")[2]
        return self.output.show and end in self.output.tail
