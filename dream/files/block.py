"""What several ranks would do to the same files and trackers while a block is open."""

from __future__ import annotations

from typing import final

from dream._topology import Cluster
from dream.files import first, opened
from dream.files.runs import Runs


@final
class BlockFiles:
    """A rank's side, in a job of several."""

    def __init__(self, place: Cluster) -> None:
        self._place = place
        self._watch: opened.Watch | None = None
        self._runs: Runs | None = None

    def begin(self) -> None:
        """Watch files that other ranks of this host could write too, and silence the runs that
        trackers begin on every rank: rank 0's is the job's."""
        if self._place.local_world_size > 1:
            self._watch = opened.watch(self._place)
        if self._place.rank:
            self._runs = Runs()
            self._runs.begin()

    def tell(self, error: BaseException | None) -> None:
        """The block ends, by an error or without."""
        if error is not None:
            first.explain(error, self._place)
        if self._watch is not None:
            self._watch.tell_of_others()

    def rest(self) -> None:
        if self._runs is not None:
            self._runs.end()
        if self._watch is not None:
            self._watch.rest()
        self._runs = self._watch = None
