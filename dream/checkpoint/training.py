"""The checkpoints of one training: those that its script saves, and those that are saved for it."""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, final

from dream import stall
from dream._errors import ConfigurationError
from dream._log import Once, logger
from dream.checkpoint import job
from dream.checkpoint.background import Saving
from dream.checkpoint.checkpointer import Checkpointer, Parts
from dream.checkpoint.commits import Commits
from dream.checkpoint.content import CheckpointContent
from dream.checkpoint.leaving import Agreed, Notice, StepEnds, leave
from dream.checkpoint.saves import Saves
from dream.cluster import settings
from dream.collectives import Communicator
from dream.data import tracked
from dream.data.position import Track
from dream.data.tracked import Tracked

_KEPT = 3
_taken: set[Path] = set()
"""Folders that a training of this process is saved in by itself."""

_OTHERS = (
    "a loader is trained on whose place in its data the checkpoint does not hold, so it begins "
    "anew where training goes on; give save and load all of them: data={'labelled': a, ...}"
)
_CUT = (
    "the loop over a loader was left before its end, and the checkpoint stands there: training "
    "that goes on reads the rest of that pass first. Where a loop ends so in every epoch, give it "
    "no more than it reads (a Subset, or a sampler with num_samples=)"
)
_WITHIN = (
    "a loader has ended within the pass of another, and has not begun anew: where the loop goes on "
    "with copies of its batches, as itertools.cycle does, those of a training that goes on are "
    "others. Begin it anew instead: while True: yield from loader"
)
_NO_PLACE = (
    "no checkpoint could be taken in %d updates, nor can a request to leave be met: between two of "
    "them one of several loaders is always at its end, and others would not be read in the pass "
    "that is gone on with. Read what fits into one batch before the loop, and not by a loader"
)
_MOST_WITHOUT = 100
_UNKEPT = (
    "{} trains on beside what the checkpoint holds, and begins anew where training goes on: that "
    "is another model. Give load and save all models, optimizers, schedules and scalers, several "
    "of a kind as a dict; and draw from torch's, NumPy's or Python's own generator, which are kept"
)
_IN_MID_PASS = (
    "training goes on in epoch %d with %d batches of it behind: what the loop counts by itself, as "
    "an index or a mean that a schedule goes by, begins anew. Count on from load(...).batch, as in "
    "enumerate(loader, at.batch if epoch == at.epoch else 0)"
)
FolderPath = str | os.PathLike[str]


@final
class TrainingCheckpoints:
    """Saves and loads for a strategy. Where `load` is given no folder, it is that of `dream run
    --checkpoint`, and what was loaded is saved there by itself: now and then, and before leaving.

    held: gives what saves and loads a model of its kind. facts: who writes.
    """

    def __init__(
        self, held: Callable[[Any], Checkpointer], ranks: Communicator, facts: Mapping[str, Any]
    ) -> None:
        self._held, self._ranks, self._facts = held, ranks, facts
        asked = settings.checkpoints()
        self._folder = asked.folder
        self._notice = Notice(settings.end_of_time())
        self._commits = Commits(ranks, self._folder)
        every = asked.every if self._folder else None
        self._ends = StepEnds(ranks, self._notice, every, self._commits)
        self._saves = Saves(ranks)
        self._over = False
        self.by_hand = False
        """Whether the script has saved or loaded."""
        self._parts: Parts | None = None  # those that are saved by themselves
        self._extra: Mapping[str, Any] = {}
        self._step = self._place = 0
        self._updated = False
        self._handed = 0
        self._tracks: list[Track] = []
        self._leaves = False
        self._tell_once = Once()
        self._read: Mapping[Tracked, int] = {}
        self._unkept: Callable[[], list[str]] = list

    def save(
        self, path: FolderPath, parts: Parts, step: int, *,
        extra: Mapping[str, Any], keep: int, best: str | None,
    ) -> Saving:  # fmt: skip
        """Begin to write one; a rank that was asked to leave has all of them leave once it is
        whole. After the block nothing follows that it could be written beside."""
        self.by_hand = True
        self._ends.listen()
        saving = self._write(path, parts, step, extra=extra, keep=keep, best=best)
        if self.leaving(ask=True):
            leave(self._notice, saving.wait())
        if self._over:
            saving.wait()
        return saving

    def load(
        self, path: FolderPath | None, parts: Parts, *, strict: bool
    ) -> CheckpointContent | None:
        self.by_hand = True
        folder = path if path is not None else self._folder
        if folder is None:
            return None
        self._ends.listen()
        held = self._held(parts.first_model)
        commits = self._commits if path is None else None
        found = job.load(folder, parts, held, self._ranks, strict=strict, commits=commits)
        if path is None:
            self._keep(parts, found.step if found else 0)
        self._read = tracked.read_so_far()
        self._unkept = held.unkept(parts)
        if found is not None and parts.data is not None and found.batch:
            logger.info(_IN_MID_PASS, found.epoch, found.batch)
        return found

    def newest(self) -> CheckpointContent | None:
        """Read the newest of the job's own checkpoints; None where there is none."""
        assert self._folder is not None
        return job.find(self._folder, self._ranks, self._commits)

    def go_on(self, found: CheckpointContent, parts: Parts) -> None:
        """Set everything as it has it, for a script that loads nothing."""
        job.go_on(found, parts, self._held(parts.first_model), self._ranks)
        self._ends.listen()

    def item_is_over(
        self, step: int, now: Callable[[], tuple[Parts, Mapping[str, Any]] | None]
    ) -> None:
        """All of an item of an untouched loop is done: save where it is time to, and leave where a
        rank was asked to. now: gives what is to be saved, and what the loop has by itself."""
        self._ends.listen()
        agreed = self._ends.came()
        found = None if agreed is None else now()
        if agreed is not None and found is not None:
            self._parts, self._extra, self._step = *found, step
            self._save_for(agreed)

    def unkept(self, parts: Parts) -> Callable[[], list[str]]:
        """Return what names that which trains on beside these from now on."""
        self._read = tracked.read_so_far()
        return self._held(parts.first_model).unkept(parts)

    def of_any_rank(self, why: str) -> str:
        """Return the first rank's that says anything."""
        return next(filter(None, self._ranks.all_gather_object(why)), "")

    def apart(self, own: Mapping[str, int]) -> list[str]:
        """Return the names under which ranks have other numbers."""
        told = self._ranks.all_gather_object(dict(own))
        names = sorted({name for each in told for name in each})
        return [name for name in names if len({each.get(name) for each in told}) > 1]

    def rest(self, *, failed: bool) -> None:
        """The block ends. failed: by an exception, or by leaving after a checkpoint."""
        self._over = True
        try:
            if not failed:  # what others do then is not known
                self._leave_at_the_end()
                self._saves.finish()
        finally:
            self._ends.rest(failed=failed)

    def _leave_at_the_end(self) -> None:
        """Where a rank was asked since the last step, in an evaluation say: what goes on comes to
        the same end. Not where a loop was left before its end, which would be gone on with."""
        if self._parts is None or any(track.cut for track in self._tracks):
            return
        agreed = self._ends.ended()
        if agreed is not None:
            self._save_for(agreed)

    def leaving(self, *, ask: bool = False) -> bool:
        """Tell whether the job was asked to leave, on every rank alike; each asks as often."""
        if not self._leaves:
            agreed = self._ends.came(ask=ask)
            self._leaves = agreed is not None and agreed.leaves
        return self._leaves

    def _keep(self, parts: Parts, step: int) -> None:
        """Have these saved by themselves from now on. step: updates made so far."""
        tracks = [] if parts.data is None else tracked.tracks_of(parts.data)
        seen = bool(tracks) and all(isinstance(track, Track) for track in tracks)
        if not (seen and parts.optimizers):
            raise ConfigurationError(
                "Automatic saving has to see the training steps. Received: load without "
                f"{'an optimizer' if seen else 'a loader of the block'}. Pass load the model, the "
                "optimizer and the loader (data=); or a folder, and call save."
            )
        assert self._folder is not None
        if self._folder in _taken:
            raise ConfigurationError(
                "A job saves one training automatically, and this is a second one, which would "
                "start from the first one's weights. Received: load without a folder again, for "
                f"{self._folder}. Pass load and save a separate folder."
            )
        _taken.add(self._folder)
        self._parts, self._step, self._place = parts, step, step
        stall.resumed(step)
        first = next(iter(parts.optimizers.values()))
        self._held(parts.first_model).count_updates(first, self._has_updated)
        self._tracks = [track for track in tracks if isinstance(track, Track)]
        for track in self._tracks:
            track.between = self._step_ended

    def _has_updated(self) -> None:
        self._step += 1
        self._updated = True
        self._handed = sum(track.handed for track in self._tracks)

    def _step_ended(self) -> None:
        """A batch is asked for: where an update came before it, all of that step is done. Of
        several loaders none may be at its end, as others of them may not be asked for theirs in
        the pass that would be gone on with; nor may one have handed out the next step's."""
        if not self._updated:
            return
        if len(self._tracks) > 1:
            self._tell_of_ended()
            if self._within_a_step:
                if self._step - self._place >= _MOST_WITHOUT:
                    self._tell_once(_NO_PLACE % _MOST_WITHOUT)
                return
        self._place = self._step
        self._updated = False
        agreed = self._ends.came()
        if agreed is not None:
            self._save_for(agreed)

    def _save_for(self, agreed: Agreed) -> None:
        """Save what the ranks agreed on, and leave where one was asked to."""
        assert self._parts is not None
        assert self._folder is not None
        again = agreed.leaves and agreed.again
        if again or (agreed.commits and not agreed.leaves):
            self._tell_of_unkept(self._parts)
            held = self._held(self._parts.first_model)
            self._commits.take(self._parts, self._step, held, extra=self._extra, facts=self._facts)
            if not again:
                return
            if self._commits.taken():
                leave(self._notice, None)
        if agreed.leaves or agreed.due:
            saving = self._write(
                self._folder,
                self._parts,
                self._step,
                extra=self._extra,
                keep=_KEPT,
                best=None,
            )
            if agreed.leaves:
                leave(self._notice, saving.wait())

    @property
    def _within_a_step(self) -> bool:
        handed = sum(track.handed for track in self._tracks)
        return handed != self._handed or any(track.at_end for track in self._tracks)

    def _write(
        self, path: FolderPath, parts: Parts, step: int, *,
        extra: Mapping[str, Any], keep: int, best: str | None,
    ) -> Saving:  # fmt: skip
        self._tell_of_unkept(parts)
        held, facts = self._held(parts.first_model), self._facts
        return self._saves.save(
            path, parts, step, held, extra=extra, facts=facts, keep=keep, best=best
        )

    def _tell_of_unkept(self, parts: Parts) -> None:
        """Say what trains on beside what is kept: where loaders are trained on whose place is not,
        or not what an undisturbed training would go on from, among them."""
        if beside := self._unkept():
            self._tell_once(_UNKEPT.format(", ".join(beside)))
        self._unkept = list  # looked at once: it goes through all objects
        data = parts.data
        if data is None:
            return
        kept = tracked.tracks_of(data)
        now = tracked.read_so_far()
        if any(t not in kept and count > self._read.get(t, 0) for t, count in now.items()):
            self._tell_once(_OTHERS)
        if any(track.cut for track in kept):
            self._tell_once(_CUT)

    def _tell_of_ended(self) -> None:
        if _WITHIN in self._tell_once:
            return
        pairs = itertools.permutations(self._tracks, 2)
        if any(one.ended_within(other) for one, other in pairs):
            self._tell_once(_WITHIN)
