"""Ranks whose death a job survives: what they are is told by the job itself, over its store."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable
from typing import final

from dream.launch.ending import Ending

RESTARTS = 3
"""How often a rank is started again before it is left dead."""


@final
class Expendable:
    """Workers of servers that can do without some. find: looks a key up in the job's store."""

    def __init__(self, find: Callable[[str], bytes | None]) -> None:
        self._find = find
        self._restarts: Counter[int] = Counter()
        self.forgiven: set[int] = set()
        """Ranks that died and are not started again; the job goes on without them."""

    def starts_again(self, ending: Ending) -> bool:
        """Whether a rank that has ended is to be started again. Says what becomes of it."""
        if not ending.failed or ending.rank not in self._ranks("roles/workers"):
            return False
        if self.training_is_over():
            if ending.victim or not ending.raised:
                self.forgiven.add(ending.rank)
            return False
        if ending.raised:
            return False  # an error of the script would come again, on this rank and others
        self._restarts[ending.rank] += 1
        if self._restarts[ending.rank] > RESTARTS:
            self.forgiven.add(ending.rank)
            _say(f"Worker {ending.rank} {ending.how} after {RESTARTS} restarts. It stays out.")
            return False
        _say(f"Worker {ending.rank} {ending.how}. The others go on; it is started again.")
        return True

    def training_is_over(self) -> bool:
        return self._ask("roles/lost") is not None

    def given_up(self) -> set[int]:
        """Once training is over: the ranks that the servers no longer knew alive."""
        return self._ranks("roles/lost")

    def _ranks(self, key: str) -> set[int]:
        value = self._ask(key) or b""
        return {int(rank) for rank in value.decode().split(",") if rank}

    def _ask(self, key: str) -> bytes | None:
        """A store that is gone says nothing; that it is gone is for others to notice."""
        try:
            return self._find(key)
        except OSError:
            return None


def _say(text: str) -> None:
    print(f"dream run: {text}", file=sys.stderr, flush=True)
