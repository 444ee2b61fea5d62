"""Keras's `fit` with steps that are not Keras's, as many as the epoch turns out to have, and what
they read."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from typing import Any, Protocol, final

import keras
import numpy as np

from dream._errors import Desynchronized, Unsupported
from dream._log import warn_once
from dream.adapters.keras import callbacks, checks, private
from dream.adapters.keras.data import private as private_data
from dream.adapters.keras.data.resume import FitProgress
from dream.adapters.keras.data.sources import (
    Arrays,
    Batches,
    DataPasses,
    check_auto_shard,
    digest_of,
    find,
)
from dream.data import tracked
from dream.parameter_server.leases import Epoch, Lease
from dream.parameter_server.protocol import EpochKey
from dream.parameter_server.worker import Worker

Arguments = dict[str, Any]


class WorkerSteps(Protocol):
    """How a worker steps on what it is dealt."""

    rank: int

    def looping(self) -> AbstractContextManager[Any]:
        """Enter what is around fit, evaluate and predict as a whole."""

    def begin(self, model: Any, source: Arrays | Batches) -> Callable[[Any, int], Any]:
        """Get ready for the first batch of a fit. Returns a function that steps on a batch of so
        many samples, and returns its logs."""

    def batches(self, source: Arrays | Batches, epoch: int) -> Iterator[tuple[Any, int]]:
        """Read this worker's batches of an epoch, each with its samples."""

    def refresh(self) -> None:
        """Take the newest parameters, before figures are taken."""

    def end_epoch(self, model: Any) -> None:
        """Do the same after an epoch's batches, before its figures are told."""

    def told(self, model: Any) -> None:
        """Note that the callbacks have been told of an epoch; one may have asked to stop."""

    def finish(self, model: Any) -> None:
        """End a fit after its last epoch."""

    def saver(self, asked: Any, progress: FitProgress, users: list[Any]) -> Any:
        """Return the callback that saves a fit for a Checkpoint; None where none can."""


@dataclass
class FitCall:
    """One call of fit. offset: of the passes over the data before it."""

    model: Any
    steps: WorkerSteps
    source: Arrays | Batches
    validation: Arguments | None
    offset: int
    passes: DataPasses


def fit(model: Any, steps: WorkerSteps, passes: DataPasses, seed: int, given: Arguments) -> Any:
    """Do what Keras's own `fit` does, step by step. given: its arguments."""
    checks.check_compiled(model)
    _check(model, given)
    if given["validation_split"] and given["validation_data"] is None:
        arrays = (given["x"], given["y"], given["sample_weight"])
        split, given["validation_data"] = private_data.split(arrays, given["validation_split"])
        given["x"], given["y"], given["sample_weight"] = split
    passes.seed = seed
    check_auto_shard(given["x"])
    source = find(
        given["x"], given["y"], given["sample_weight"], batch_size=given["batch_size"],
        shuffle=given["shuffle"], class_weight=given["class_weight"], passes=passes,
        parts=1,
    )  # fmt: skip
    if given["shuffle"] and (isinstance(source, Arrays) or source.ordered is not None):
        warn_once(
            "each worker takes shuffled samples in an order that seed= draws, which is not the "
            "script's own on one device. Received: fit(shuffle=True). Pass shuffle=False for the "
            "order of the data"
        )
    progress = FitProgress()
    progress.passes = passes
    tracked.mark(model, progress)
    first = progress.begin_fit(given["initial_epoch"], seed, by_epoch=True)
    progress.read_from(source, "" if source.fixed else type(given["x"]).__name__)
    given["callbacks"] = callbacks.saved_alone(given["callbacks"], steps, progress)
    listed = _listed(model, source, steps.rank, given)
    model.stop_training = False
    listed.on_train_begin()
    goes_on = private.first_epoch(model)
    first = first if goes_on is None else goes_on
    if progress.resuming:
        passes.next = progress.position.epoch
    run = FitCall(model, steps, source, _validation(given), passes.next - first, passes)
    step = steps.begin(model, source)
    logs: Arguments = {}
    for epoch in range(first, given["epochs"]):
        logs = _epoch(run, epoch, step, listed, given["validation_freq"])
        if model.stop_training:
            break
    steps.finish(model)
    listed.on_train_end(logs)
    return model.history


def _epoch(
    run: FitCall, epoch: int, step: Callable[[Any, int], Any], listed: Any, every: Any
) -> Any:
    model = run.model
    model.reset_metrics()
    listed.on_epoch_begin(epoch)
    run.passes.next = epoch + run.offset
    logs: Any = {}
    dealt = run.steps.batches(run.source, epoch + run.offset)
    for index, (batch, samples) in enumerate(dealt):
        listed.on_train_batch_begin(index)
        logs = step(batch, samples)
        listed.on_train_batch_end(index, logs)
        if model.stop_training:
            break
    dealt.close()  # type: ignore[attr-defined]
    run.steps.end_epoch(model)
    told = private.results(model, logs)
    if run.validation is not None and private.validates(model, epoch, every):
        found = model.evaluate(**run.validation, callbacks=listed, return_dict=True)
        told.update({f"val_{name}": value for name, value in found.items()})
    listed.on_epoch_end(epoch, told)
    run.steps.told(model)
    return told


def _listed(model: Any, source: Arrays | Batches, rank: int, given: Arguments) -> Any:
    """List the callbacks, the progress bar among them on rank 0."""
    own = callbacks.of_rank(given["callbacks"], rank)
    if isinstance(own, keras.callbacks.CallbackList):
        return own
    batches = (
        -(-source.samples // source.batch_size)
        if isinstance(source, Arrays)
        else source.adapter.num_batches
    )
    verbose = given["verbose"] if rank == 0 else 0
    return keras.callbacks.CallbackList(
        own, add_history=True, add_progbar=verbose != 0, verbose=verbose,
        epochs=given["epochs"], steps=batches, model=model,
    )  # fmt: skip


def _validation(given: Arguments) -> Arguments | None:
    if given["validation_data"] is None:
        return None
    x, y, weight = keras.utils.unpack_x_y_sample_weight(given["validation_data"])
    return {
        "x": x,
        "y": y,
        "sample_weight": weight,
        "batch_size": given["validation_batch_size"] or given["batch_size"],
        "steps": given["validation_steps"],
    }


def _check(model: Any, given: Arguments) -> None:
    what = None
    if type(model).fit is not keras.Model.fit:
        what = f"{type(model).__name__}.fit", "Override train_step in its place"
    elif given["steps_per_epoch"] is not None:
        what = f"steps_per_epoch={given['steps_per_epoch']}", "Remove it: an epoch is all data"
    elif model.steps_per_execution > 1:
        what = f"steps_per_execution={model.steps_per_execution}", "Leave it at 1"
    elif any(
        isinstance(c, keras.callbacks.BackupAndRestore)
        for c in private.tree.flatten(given["callbacks"] or [])
    ):
        what = "BackupAndRestore", "Save with ModelCheckpoint, or use snapshot_every="
    if what is not None:
        raise Unsupported(
            f"Replicas that step independently cannot do this. Received: {what[0]}. {what[1]}."
        )


class LeasedFeed(ABC):
    """The batches of one pass."""

    epoch: Epoch

    @abstractmethod
    def batch(self, lease: Lease) -> tuple[Any, int]:
        """Read what was leased, and count its samples."""

    def close(self) -> None:
        """End the pass."""
        return


@final
class ArrayFeed(LeasedFeed):
    """Arrays in the order of the pass. backend: Keras's, which slices them."""

    def __init__(self, source: Arrays, backend: str) -> None:
        self.epoch = Epoch(source.samples, source.batch_size, drop_last=False)
        self._order = source.order()
        self._inputs = private.tree.lists_to_tuples(private_data.sliceable(source.inputs, backend))
        first, _ = self.batch(Lease((0, 0), 0, 0, 0, 1))
        self.epoch = replace(self.epoch, mark=_mark(first))

    def batch(self, lease: Lease) -> tuple[Any, int]:
        size = self.epoch.batch_size
        places = self._order[lease.index * size : (lease.index + 1) * size]
        mine = places[lease.part :: lease.parts]
        return private.tree.map_structure(lambda a: _taken(a, mine), self._inputs), len(mine)


@final
class WalkFeed(LeasedFeed):
    """A source of batches that is read in order on every worker. Batches that others have are
    kept to the end of the pass, since they may be dealt again. ended: called then."""

    def __init__(
        self,
        source: Iterable[Any],
        count: int | None,
        ended: Callable[[], None] = lambda: None,
    ) -> None:
        if count is None or count < 0:
            raise Unsupported(
                "The servers hand out batches by index. Received: data of unknown length. Say it "
                "with dataset.apply(tf.data.experimental.assert_cardinality(n)), or pass arrays."
            )
        self._batches = iter(source)
        self._ended = ended
        self._read: list[Any] = []
        self.epoch = Epoch(count, 1, drop_last=False)
        if count:
            size = _samples(self._at(0))
            self.epoch = Epoch(count * size, size, False, _mark(self._at(0)))

    def batch(self, lease: Lease) -> tuple[Any, int]:
        whole = self._at(lease.index)
        mine = private.tree.map_structure(
            lambda a: None if a is None else a[lease.part :: lease.parts], whole
        )
        return mine, _samples(mine)

    def close(self) -> None:
        self._ended()

    def _at(self, index: int) -> Any:
        while len(self._read) <= index:
            try:
                self._read.append(next(self._batches))
            except StopIteration:
                raise Desynchronized(
                    f"The data has fewer batches than its length says. Received: batch {index} of "
                    f"{len(self._read)}. Read the same data on every rank."
                ) from None
        return self._read[index]


def feed_of(source: Arrays | Batches) -> LeasedFeed:
    """Begin a pass over what `fit` was given."""
    if isinstance(source, Arrays):
        return ArrayFeed(source, keras.backend.backend())
    if source.ordered is not None:
        source.ordered.begin_pass()
    adapter = source.adapter
    adapter.on_epoch_begin()
    torch = keras.backend.backend() == "torch"
    batches = adapter.get_torch_dataloader() if torch else adapter.get_tf_dataset()
    return WalkFeed(batches, adapter.num_batches, adapter.on_epoch_end)


def leased(worker: Worker, key: EpochKey, feed: LeasedFeed) -> Iterator[tuple[Any, int]]:
    """Read the batches of a pass that this worker is dealt, each with its samples."""
    current = worker.begin(key, feed.epoch, ahead=False)
    try:
        for lease in current.leases():
            yield feed.batch(lease)
    finally:
        current.abandon()
        feed.close()


def _taken(array: Any, places: Any) -> Any:
    if array is None or isinstance(array, np.ndarray):
        return None if array is None else array[places]
    if isinstance(array, private_data.Sliceable):  # what Keras makes of arrays for torch
        return array.convert_to_torch_compatible(array[places])
    return keras.ops.take(array, places, axis=0)


def _mark(batch: Any) -> int:
    """Return a number that tells batches of other content apart."""
    flat = [np.asarray(a) for a in private.tree.flatten(batch) if a is not None]
    return digest_of(a for a in flat if a.dtype.kind in "fiub")


def _samples(batch: Any) -> int:
    first = next(a for a in private.tree.flatten(batch) if a is not None)
    return int(np.shape(first)[0])
