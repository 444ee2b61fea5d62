"""A script that neither saves nor loads, saved at steps' ends under `dream run --checkpoint`, and
gone on with, where all that trains can be seen and its loop has a form that is found again."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping
from functools import wraps
from typing import TYPE_CHECKING, Any, final
from weakref import ref

from torch.optim import Optimizer
from torch.optim.optimizer import (
    register_optimizer_step_post_hook,
    register_optimizer_step_pre_hook,
)
from torch.utils.data import DataLoader
from torch.utils.hooks import RemovableHandle

from dream._errors import ConfigurationError, Unsupported
from dream._log import logger
from dream.adapters.pytorch.checkpoint.made import MadeInBlock
from dream.adapters.pytorch.checkpoint.passes import Passes
from dream.adapters.pytorch.checkpoint.place import Place, agreed_place
from dream.adapters.pytorch.checkpoint.replay import LINES, Replay, cannot_go_on
from dream.adapters.pytorch.checkpoint.variables import Told, Variables
from dream.adapters.pytorch.hooks import Hooks
from dream.checkpoint import job
from dream.checkpoint.checkpointer import Checkpointer, Parts, SelfSaved
from dream.cluster import settings
from dream.collectives import Communicator
from dream.data import tracked
from dream.data.position import Track

if TYPE_CHECKING:
    from dream.checkpoint.training import TrainingCheckpoints

Kept = Callable[[Any], "TrainingCheckpoints"]
_UNTOUCHED = "untouched"
_STRATEGIES = ("single", "mirrored", "multi_worker_mirrored", "horovod", "sharded")
_UNSAVED = (
    "--checkpoint keeps nothing of this training%s: %s. A job that is started again %s. Have the "
    "script load it, which has it saved from then on, in three lines:\n" + LINES
)
_SAVED = (
    "the script neither saves nor loads, so its training is saved by itself: %s, and the plain "
    "variables of the loop. Started again, the job goes through its loop to where it stood"
)


@final
class UntouchedTraining(SelfSaved):
    """The training of a block, by what is made in it and by the passes over its loaders.

    strategy: its name. held: gives what saves models under it.
    """

    def __init__(
        self, strategy: str, held: Callable[[], Checkpointer], ranks: Communicator
    ) -> None:
        self._strategy, self._held, self._ranks = strategy, held, ranks
        self._folder = settings.checkpoints().folder
        self._on = self._folder is not None
        self._made, self._passes, self._variables = MadeInBlock(), Passes(), Variables()
        self._hooks: list[RemovableHandle] = []
        self._kept: Kept | None = None
        self._training: TrainingCheckpoints | None = None
        self._replay: Replay | None = None
        self._main: DataLoader[Any] | None = None
        self._history: list[Told] = []
        self._stepped: set[int] = set()
        self._counted = 0
        self._unkept: Callable[[], list[str]] = list

    def subscribe(self, hooks: Hooks) -> None:
        if self._on:
            self._made.subscribe(hooks)
            hooks.wrap("save", self._saving)

    def enter(self, kept: Kept | None) -> None:
        """The block begins. kept: gives what saves the block's training."""
        if self._folder is None or not self._on:
            return
        self._kept = kept
        self._hooks = [
            register_optimizer_step_pre_hook(self._steps),
            register_optimizer_step_post_hook(self._has_stepped),
        ]
        found = job.peek(self._folder, self._ranks)
        if found is not None and _UNTOUCHED in found:
            place = Place.of(found[_UNTOUCHED])
            world = self._ranks.world_size
            self._replay = Replay(place, self._variables, world, self._go_on)

    def exit(self) -> None:
        """The block ends. Raise where it did before the place of the checkpoint came."""
        for hook in self._hooks:
            hook.remove()
        self._on = False
        self._variables, replay, self._replay = Variables(), self._replay, None
        error = sys.exc_info()[1]
        if replay is None:
            return
        replay.over()
        if isinstance(error, (ConfigurationError, KeyboardInterrupt)):
            return
        why = "its training ended before it came to the place of the checkpoint"
        if isinstance(error, Exception):
            why = f"going through its loop without data raised {type(error).__name__}: {error}"
        raise cannot_go_on(why) from error

    def taken(self) -> None:
        """The script saves or loads by itself."""
        if not self._on or self._training is not None:
            return
        replay, self._replay = self._replay, None
        self._on = False
        if replay is not None:
            replay.over()
            if replay.passes:
                raise cannot_go_on("it saves or loads within its loop")

    def iterate(
        self, loader: DataLoader[Any], begin: Callable[[], Iterator[Any]], *, trains: bool
    ) -> Iterator[Any]:
        """A pass over a loader of the block. begin: makes its iterator."""
        if not self._on:
            return begin()
        reading = self._passes.of(loader)
        if self._replay is not None:
            number = self._made.loader(loader)
            return self._replay.iterate(loader, number, begin, reading, trains=trains)
        if not trains:
            return begin()
        self._follow(loader)
        return reading.begins(begin())

    def _follow(self, loader: DataLoader[Any]) -> None:
        track = tracked.track_of(loader)
        if isinstance(track, Track) and track.between is None:
            held = ref(loader)
            track.between = lambda: self._asked(held())

    def _asked(self, loader: DataLoader[Any] | None) -> None:
        """A batch to train on is asked for: where an update of all came before it, a step ends."""
        if loader is None or not self._on or self._replay is not None:
            return
        if self._passes.asked(loader) and self._main in (None, loader):
            self._pass_begins(loader)
        stepped, self._stepped = self._stepped, set()
        training, first = self._training, self._passes.of(loader).first
        if training is None or loader is not self._main or first or not stepped:
            return
        if not self._made.pending(stepped):
            training.step_ended()

    def _pass_begins(self, loader: DataLoader[Any]) -> None:
        reading = self._passes.of(loader)
        if reading.begun == 1:
            self._history = []
        self._variables.began(reading.form)
        told = self._variables.changed().told
        self._history.append({key: said for key, said in told.items() if said[0] == "value"})

    def _steps(self, *_: Any) -> None:
        """An optimizer is about to make an update: the first one says which loader is trained on,
        and whether what trains is seen."""
        if not self._on or self._replay is not None:
            return
        loader = self._passes.last
        if loader is None:
            self._refuse("it trains on batches that no loader of the block has dealt")
        elif loader is not self._main or self._passes.of(loader).form.why:
            why = self._why_not(loader)
            if why:
                self._refuse(why)
            else:
                self._begin(loader, 0)

    def _has_stepped(self, optimizer: Optimizer, *_: Any) -> None:
        if not self._on or self._training is None or self._replay is not None:
            return
        self._stepped.add(id(optimizer))
        self._counted = self._counted or id(optimizer)
        if self._counted == id(optimizer):
            self._training.has_updated()

    def _why_not(self, loader: DataLoader[Any]) -> str:
        """Say why a training is not kept that makes its first update; empty where it is."""
        if self._main is not None:
            reading = self._passes.of(loader)
            return reading.form.why or "it trains on a second loader"
        if self._strategy not in _STRATEGIES:
            return f"this is for {', '.join(_STRATEGIES)}, and not yet for {self._strategy!r}"
        if self._made.loader(loader) is None or self._kept is None:
            return "its loader was not made in the block"
        why = self._passes.of(loader).why_not()
        try:
            parts, held = self._made.parts(loader), self._held()
            for each in parts.optimizers.values():
                held.optimizer(each, parts.models, lambda *_: False)
        except (ConfigurationError, Unsupported) as error:
            return why or str(error)
        return why

    def _begin(self, loader: DataLoader[Any], step: int) -> None:
        """Have it saved from here on. step: updates made before."""
        assert self._kept is not None
        self._main = loader
        parts = self._made.parts(loader)
        self._training = self._kept(parts.first_model)
        self._training.keep(self, step)
        self._unkept = self._held().unkept(parts)
        logger.info(_SAVED, _told(parts))

    def parts(self) -> Parts:
        assert self._main is not None
        return self._made.parts(self._main)

    def extra(self) -> Mapping[str, Any] | None:
        """What a process needs to come to the same place; None where something is not kept."""
        assert self._main is not None
        reading, changed = self._passes.of(self._main), self._variables.changed()
        lost = [*self._unkept(), *(f"the variable {name!r}" for name in changed.lost)]
        self._unkept = list  # looked at once: it goes through all objects
        why = f"it would begin anew: {', '.join(sorted({*lost}))}" if lost else reading.why_not()
        problems = [each for each in self._ranks.all_gather_object(why) if each]
        if problems:
            self._refuse(problems[0])
            return None
        place = agreed_place(
            self._ranks, changed, self._history, loader=self._made.loader(self._main),
            passes=reading.begun - 1, site=reading.form.site, index=reading.index(),
        )  # fmt: skip
        return {_UNTOUCHED: place}

    def refuses(self, error: Exception) -> bool:
        self._refuse(str(error))
        return True

    def _refuse(self, why: str) -> None:
        self._on = False
        saved = self._training is not None and self._training.saved
        again = "goes on from the one before" if saved else "begins anew"
        logger.info(_UNSAVED, " from here on" if saved else "", why, again)
        if self._training is not None:
            self._training.stop()

    def _go_on(self, loader: DataLoader[Any], begin: Callable[[], Iterator[Any]]) -> Iterator[Any]:
        """Set everything as the checkpoint has it, and begin its pass."""
        assert self._folder is not None
        assert self._kept is not None
        place, history = self._replay and self._replay.place, self._replay and self._replay.history
        found = job.find(self._folder, self._ranks)
        if found is None or place is None:
            raise cannot_go_on("the checkpoint is gone")
        self._training = self._kept(self._made.first_model)
        try:
            job.take(found, self._made.parts(loader), self._held())
        except (ConfigurationError, Unsupported) as error:
            raise cannot_go_on(str(error)) from error
        self._made.clear_gradients()
        self._replay, self._history = None, [*(history or [])]
        self._begin(loader, found.step)
        logger.info("training goes on in epoch %d with %d batches of it behind, at step %d",
                    found.epoch, found.batch, found.step)  # fmt: skip
        self._follow(loader)
        return begin()

    def _saving(self, save: Callable[..., Any]) -> Callable[..., Any]:
        """torch.save, which writes nothing while finished epochs are gone through again."""

        @wraps(save)
        def saved(*args: Any, **kwargs: Any) -> Any:
            return None if self._replay is not None else save(*args, **kwargs)

        return saved


def _told(parts: Parts) -> str:
    kinds = [*parts.models.values(), *parts.optimizers.values(), *parts.schedulers.values()]
    return ", ".join(type(each).__name__ for each in kinds)
