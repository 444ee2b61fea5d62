"""What the launchers of several hosts tell one another while their ranks run."""

from __future__ import annotations

import contextlib
import json
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict
from typing import Any

from dream.cluster import Rendezvous
from dream.cluster.rendezvous import Missing
from dream.launch.ending import Ending
from dream.launch.job import Job

FAULT, DONE = "fault", "done"
_BEAT_SECONDS = 0.5
_SILENT_SECONDS = 15.0
_FAILURES_ALLOWED = 3
_FAREWELL_SECONDS = 3.0


class Link:
    """Beats in a thread of its own. Tells `event`: FAULT once another host has one, DONE once
    the ranks of every host ended well, or in a sentence that another launcher is gone."""

    def __init__(self, job: Job, store: Rendezvous, event: Callable[[str], None]) -> None:
        self._node = job.node_rank
        self._others = [node for node in range(job.nnodes) if node != job.node_rank]
        self._store = store
        self._event = event
        self._closed = threading.Event()
        self._beats = dict.fromkeys(self._others, (b"", time.monotonic()))
        self._thread = threading.Thread(target=self._run, name="dream-link", daemon=True)
        self._thread.start()

    def publish(self, endings: Sequence[Ending], lost: str = "") -> None:
        """Tell the other hosts that the job has failed, and what is known of it here."""
        self._put(FAULT, endings, lost)

    def finished(self, endings: Sequence[Ending]) -> None:
        """Tell the other hosts that every rank here has ended well."""
        self._put(DONE, endings, "")

    def faults(self, *, timeout: float) -> tuple[list[Ending], str]:
        """What the other hosts told of the fault, those that did within `timeout` seconds."""
        with contextlib.suppress(Missing):
            self._store.gather([f"{FAULT}/{node}" for node in self._others], timeout=timeout)
        told = [*self._told(FAULT), *self._told(DONE)]
        endings = [Ending(**ending) for content in told for ending in content["endings"]]
        return endings, next((c["lost"] for c in told if c["lost"]), "")

    def left(self) -> list[Ending]:
        """The ranks of hosts where every rank has ended well."""
        return [Ending(**e) for content in self._told(DONE) for e in content["endings"]]

    def close(self) -> None:
        """Node 0 serves the store, so it stays until the others have read what they need."""
        self._closed.set()
        self._thread.join()
        with contextlib.suppress(OSError, Missing):
            self._store.put(f"bye/{self._node}", b"bye")
            if self._node == 0:
                byes = [f"bye/{node}" for node in self._others]
                self._store.gather(byes, timeout=_FAREWELL_SECONDS)

    def _put(self, kind: str, endings: Sequence[Ending], lost: str) -> None:
        content = {"endings": [asdict(ending) for ending in endings], "lost": lost}
        with contextlib.suppress(OSError):
            self._store.put(f"{kind}/{self._node}", json.dumps(content).encode())

    def _told(self, kind: str) -> list[dict[str, Any]]:
        with contextlib.suppress(OSError):
            values = [self._store.find(f"{kind}/{node}") for node in self._others]
            return [json.loads(value) for value in values if value is not None]
        return []

    def _run(self) -> None:
        failures = count = 0
        while not self._closed.wait(_BEAT_SECONDS):
            count += 1
            try:
                told = self._beat(count)
                failures = 0
            except OSError:
                failures += 1
                told = "node 0's launcher is gone" if failures >= _FAILURES_ALLOWED else ""
            if told:
                self._event(told)
                return

    def _beat(self, count: int) -> str:
        self._store.put(f"beat/{self._node}", str(count).encode())
        if any(self._store.find(f"{FAULT}/{node}") is not None for node in self._others):
            return FAULT
        nodes = [self._node, *self._others]
        if all(self._store.find(f"{DONE}/{node}") is not None for node in nodes):
            return DONE
        return self._silent()

    def _silent(self) -> str:
        now = time.monotonic()
        for node in self._others:
            beat = self._store.find(f"beat/{node}") or b""
            if beat != self._beats[node][0]:
                self._beats[node] = (beat, now)
            elif now - self._beats[node][1] > _SILENT_SECONDS:
                return f"node {node}'s launcher is gone"
        return ""
