"""The Strategy that a user holds: the block, and what it offers inside."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from contextvars import ContextVar, Token
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from dream import _observers, cluster
from dream._adapter import Adapter, Asynchronous, Coordinating, Metric, Step
from dream._errors import ConfigurationError, Unsupported
from dream._libraries import Refusal
from dream._log import speak_as
from dream._topology import Cluster, Topology
from dream.collectives import Communicator
from dream.data import partition, tracked
from dream.launch.joined.threads import share_cores
from dream.parameter_server.staleness import Staleness
from dream.strategies import choice as choices
from dream.strategies.choice import Choice, Randomness
from dream.strategies.making import PendingAdapter
from dream.strategies.spec import Framework

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from dream.checkpoint import CheckpointContent
    from dream.checkpoint.background import Saving
    from dream.checkpoint.training import TrainingCheckpoints
    from dream.files.opened import BlockFiles
    from dream.progress.loop import Progress

_current: ContextVar[Strategy | None] = ContextVar("dream.strategy", default=None)


def current() -> Strategy | None:
    """The strategy whose block we are in, or None."""
    return _current.get()


def strategy(
    name: str | None = None,
    *,
    framework: str | None = None,
    reduction: str = "auto",
    devices: int | None = None,
    seed: int | None = None,
    randomness: str = "global",
    **options: object,
) -> Strategy:
    """A strategy, to be used by `with`.

    name: one of `dream strategies`; None takes `single` in one process, `mirrored` in several on
        one host, `multi_worker_mirrored` on several hosts; "auto" takes what a plan takes
        (`plan=`, a file of `dream plan --json`). `dream run --strategy` overrides it.
    framework: "torch" or "tensorflow"; None goes by what is imported, and where both are by the
        first model, optimizer or loader that is made or used in the block.
    reduction: who adds the gradients up; "auto" takes what fits the devices.
    devices: per process; None takes every GPU, else one CPU.
    seed: fixes the order of shuffled data, together with the epoch; None leaves the script's own.
    randomness: "global" draws dropout and noise for the global batch, of which a rank uses its
        rows; "local" draws on each rank for itself.
    options: the strategy's own; `dream strategies NAME` lists them.
    """
    place = cluster.detect()
    speak_as(place.rank)
    share_cores(place)
    choice = choices.strategy(name, {"reduction": reduction, "devices": devices, **options}, place)
    return Strategy(
        choice, place, choices.framework(framework), choices.randomness(seed, randomness)
    )


class Strategy:
    """How a model trains. Made by `dream.strategy`, used by `with`.

    Inside the block models, optimizers and data loaders are distributed as they are created, and
    stay so after it.
    """

    def __init__(
        self,
        choice: Choice,
        place: Cluster,
        framework: Framework | None,
        randomness: Randomness,
    ) -> None:
        self._choice = choice
        self._place = place
        self._randomness = randomness
        self._pending = PendingAdapter(choice, place, framework, randomness)
        self._token: Token[Strategy | None] | None = None
        self._files: BlockFiles | None = None
        self._refusal = Refusal(self.name)
        self._last_value: Any = None
        self._checkpoints: TrainingCheckpoints | None = None

    def __repr__(self) -> str:
        return (
            f"Strategy({self.name!r}, framework={self._pending.framework!r}, "
            f"reduction={self._choice.reduction!r}, world_size={self._place.world_size})"
        )

    @property
    def name(self) -> str:
        return self._choice.spec.name

    @property
    def topology(self) -> Topology:
        """This rank's place and device. Frozen."""
        return self._adapter.topology

    @property
    def communicator(self) -> Communicator:
        """all_reduce, broadcast and barrier among the ranks."""
        return self._adapter.communicator

    def __enter__(self) -> Self:
        outer = _current.get()
        if outer is not None:
            raise ConfigurationError(
                f"Blocks cannot be nested. Received: {self.name!r} inside {outer.name!r}. Exit the "
                "first block before entering the second."
            )
        self._token = _current.set(self)
        try:
            self._begin()
        except BaseException:
            self._leave()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        with ExitStack() as ends:  # the last one first, and all of them whatever one raises
            ends.callback(self._leave)
            ends.callback(self._pending.exit)
            if self._checkpoints is not None:
                ends.callback(self._checkpoints.rest, failed=error is not None)
            if self._files is not None:
                ends.callback(self._files.tell, error)

    def _begin(self) -> None:
        if not self._place.alone:
            from dream.files.opened import BlockFiles  # on use: `import dream` stays quick

            self._files = BlockFiles(self._place)
            self._files.begin()
            self._refusal.begin()
        self._pending.enter()

    def _leave(self) -> None:
        self._refusal.end()
        if self._files is not None:
            self._files.rest()
        self._files = None
        self._pending.rest()
        if self._token is not None:
            _current.reset(self._token)
            self._token = None

    def prepare(self, *objects: Any) -> Any:
        """Models, optimizers and data in; the same, distributed, out in order (one object comes
        back alone). What was made inside the block is distributed already; this takes what was
        made before it, and is the explicit form for those who prefer it."""
        self._pending.decide_by(objects)
        ready = self._adapter.prepare(*objects)
        return ready[0] if len(objects) == 1 else ready

    def train_step(
        self,
        model: Any,
        loss: Callable[..., Any],
        optimizer: Any,
        *,
        weight: Callable[..., Any] | None = None,
    ) -> Step:
        """A callable that trains on one batch: `step(*batch)`, with this rank's share of it.

        loss: `loss(prediction, target)`, the mean over the samples it is given.
        weight: `weight(*batch)`, how many things (tokens, unmasked pixels) `loss` is the mean
            over; the default is samples.
        Returns the global mean loss as a 0-d value, the same on every rank, waited for only when
        it is read. Reading it on one rank alone never blocks.
        """
        self._pending.decide_by((model, optimizer))
        step = self._adapter.train_step(model, loss, optimizer, weight)
        for observer in _observers.registered:
            step = observer.observed(step, model)

        def kept(*batch: Any) -> Any:
            self._last_value = step(*batch)
            return self._last_value

        return kept

    def evaluate(
        self, model: Any, data: Iterable[Any], metrics: Mapping[str, Metric]
    ) -> dict[str, float]:
        """Means over every sample of `data`, each used once, the same on every rank.

        data: batches `(input, target)`: a loader or dataset made in the block, or one that
            yields every sample on every rank.
        metrics: name -> `function(prediction, target)` giving one value per sample, shape (n,).
        """
        self._pending.decide_by((model,))
        return self._adapter.evaluate(model, data, metrics)

    def full_state(self, model: Any) -> dict[str, NDArray[Any]]:
        """Every parameter and buffer of a model by name, as whole arrays, the same on every rank:
        what `single` would hold, however the strategy splits it. Call it on every rank.

        Names are those of `state_dict()`; of `variable.path` in Keras, from the model's own name
        on.
        """
        self._pending.decide_by((model,))
        return self._adapter.full_state(model)

    def order(self, samples: int, epoch: int = 0) -> NDArray[np.int64]:
        """The order in which an epoch of a shuffled loader takes its samples where `seed=` fixes it
        (0 where it does not), shape (samples,): for those who feed `train_step` from data of their
        own."""
        seed = self._randomness.seed or 0
        return partition.epoch_order(samples, seed=seed, epoch=epoch, shuffle=True)

    def progress(
        self, batches: Iterable[Any], *, name: str = "", tensorboard: str | None = None
    ) -> Progress:
        """The same batches, and on rank 0 how far they have come: time left, samples a second over
        all ranks, and the loss of the last step that `train_step` made. On a terminal a bar, else
        a line now and then. `tell(loss=..., ...)` on what comes back adds figures of the loop's.

        name: what the loop is called. tensorboard: a folder to write the figures to as events.
        """
        from dream.progress import loop  # rich is slow to come

        shown = self.topology.rank == 0
        wanted = tensorboard if shown else None
        return loop.Progress(
            batches, name=name, shown=shown, parts=self.topology.num_replicas,
            track=tracked.found_in(batches), loss=lambda: self._last_value,
            board=None if wanted is None else loop.TensorBoardWriter(wanted),
        )  # fmt: skip

    def data_state(self, data: Any) -> dict[str, Any]:
        """Where training stands in its data: plain numbers, the same on every rank and for any
        number of replicas, to be kept with the weights.

        data: a DataLoader of the block, a dataset that `prepare` gave, or a Keras model that `fit`
            trains. A batch counts once it is handed out.
        """
        return tracked.track_of(data).state()

    def load_data_state(self, data: Any, state: Mapping[str, Any]) -> None:
        """Have training go on from there, each sample once. Call it on every rank, before the
        first batch."""
        tracked.track_of(data).load(state)

    def save(
        self,
        path: str | os.PathLike[str],
        *,
        step: int,
        model: Any,
        optimizer: Any = None,
        scheduler: Any = None,
        data: Any = None,
        extra: Mapping[str, Any] | None = None,
        keep: int = 3,
        best: str | None = None,
    ) -> Saving:
        """Copy what training holds, and write it as a checkpoint that any number of ranks goes on
        from, while the next steps are made. Call it on every rank. What comes back names its folder
        (`.path`); `.wait()`, on every rank, returns that once it is whole. The next save waits for
        this one, and so do `load` and the block's end. Where the job was asked to leave, it leaves
        then, with exit code 85.

        path: a folder for checkpoints, made where there is none. step: updates made so far.
        model, optimizer, scheduler: one, or a dict of several by name. A scheduler is anything
            with a `state_dict` of plain values. data: a loader of the block, or a dict of several.
        extra: plain values that come back from `load`. keep: how many of the newest stay. best: a
            name in `extra`, whose smallest value stays too.
        Errors: DreamError where the disk refuses, with those before untouched: here, or for what
        came up in the writing at `wait`, the next `save` or the block's end, on every rank.
        """
        from dream.checkpoint.checkpointer import Parts  # on use: `import dream` stays quick

        kept = self._checkpoints_of(model)
        parts = Parts.of(model, optimizer, scheduler, data)
        return kept.save(path, parts, step, extra=extra or {}, keep=keep, best=best)

    def load(
        self,
        path: str | os.PathLike[str] | None = None,
        *,
        model: Any,
        optimizer: Any = None,
        scheduler: Any = None,
        data: Any = None,
        strict: bool = True,
    ) -> CheckpointContent | None:
        """Set everything as the newest checkpoint in a folder has it, whatever strategy, number of
        ranks and framework wrote it, and return it (`.step`, `.extra`); None where there is none.
        Call it on every rank, with what `save` was given. The generators go on where they stood.

        path: the folder, or one checkpoint in it. None takes that of `dream run --checkpoint`,
            where training is saved by itself from then on; steps count updates. Without one nothing
            is loaded or saved.
        strict: False leaves an optimizer, a scheduler or data as they are where the checkpoint has
            none.
        Errors: ConfigurationError for a checkpoint of other parts (the first difference named), a
        damaged one, or a newer format; nothing has been changed then.
        """
        from dream.checkpoint.checkpointer import Parts

        kept = self._checkpoints_of(model)
        parts = Parts.of(model, optimizer, scheduler, data)
        return kept.load(path, parts, strict=strict)

    @property
    def leaving(self) -> bool:
        """Whether the job was asked to leave (SIGTERM, SIGUSR1 or the end of Slurm's time, at any
        rank), the same on every rank: for a loop that saves by hand, whose next `save` leaves. Ask
        on every rank, once a step; False until `save` or `load` was called."""
        return self._checkpoints is not None and self._checkpoints.leaving()

    def _checkpoints_of(self, model: Any) -> TrainingCheckpoints:
        if self._checkpoints is None:
            from dream import __version__
            from dream.checkpoint.training import TrainingCheckpoints

            self._pending.decide_by(model.values() if isinstance(model, Mapping) else (model,))
            adapter = self._adapter
            facts = {
                "strategy": self.name, "framework": self._pending.framework,
                "dream": __version__, "world_size": self._place.world_size,
            }  # fmt: skip
            self._checkpoints = TrainingCheckpoints(adapter.checkpointer, adapter.savers, facts)
        return self._checkpoints

    def weigh(self, loss: Any, count: Any) -> Any:
        """`loss`, this rank's mean over `count` things, scaled so that the gradient is that of
        the mean over the things of all ranks. Call it on every rank, before backward."""
        return self._adapter.weigh(loss, count)

    def share(self, *tensors: Any) -> Any:
        """This rank's rows of each tensor (one tensor comes back alone), for a batch that no
        loader deals: every rank gives the whole batch, and losses are weighed by the rows that it
        gets."""
        given = self._adapter.share(tensors)
        return given[0] if len(given) == 1 else given

    def staleness(self) -> Staleness:
        """How stale an asynchronous training's updates were: mean, max and histogram, and what
        became of its workers. Of the whole job, whichever rank asks."""
        adapter = self._adapter
        if not isinstance(adapter, Asynchronous):
            raise Unsupported(
                "Updates of a synchronous strategy have no staleness. Received: staleness() under "
                f"{self.name!r}. It works only under 'parameter_server'."
            )
        return adapter.staleness()

    def schedule(
        self, function: Callable[..., Any], args: Sequence[Any] = (), kwargs: Any = None
    ) -> Any:
        """Hand a function out to whichever worker is free, and return at once what `fetch` takes:
        under `parameter_server` with engine="tensorflow". A function of a worker that dies is done
        again by another."""
        return self._coordinating("schedule").schedule(function, args, kwargs or {})

    def join(self) -> None:
        """Wait until all that was handed out is done. Raises the first error of any of it."""
        self._coordinating("join").join()

    def fetch(self, value: Any) -> Any:
        """What functions that were handed out gave, waited for: NumPy's arrays and numbers in the
        structure of `value`."""
        return self._coordinating("fetch").fetch(value)

    def _coordinating(self, asked: str) -> Coordinating:
        adapter = self._adapter
        if not isinstance(adapter, Coordinating):
            raise Unsupported(
                f"Every rank runs the loop here. Received: {asked} under {self.name!r}. Use "
                "dream.strategy('parameter_server', engine='tensorflow')."
            )
        return adapter

    @property
    def _adapter(self) -> Adapter:
        return self._pending.get()
