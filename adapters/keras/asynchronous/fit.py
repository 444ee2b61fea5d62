"""Keras's `fit` with steps that are not Keras's: how many there are, the epoch's end tells."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, Protocol

import keras

from dream._errors import Unsupported
from dream.adapters.keras import callbacks, checks, private
from dream.adapters.keras.data.sources import Arrays, Batches, Passes, find

Arguments = dict[str, Any]


class Steps(Protocol):
    """How a worker steps on what it is dealt."""

    rank: int

    def looping(self) -> AbstractContextManager[Any]:
        """Around fit, evaluate and predict as a whole."""

    def begin(self, model: Any, source: Arrays | Batches) -> Callable[[Any, int], Any]:
        """Before the first batch of a fit. A function that steps on a batch of so many samples,
        and returns its logs."""

    def batches(self, source: Arrays | Batches, epoch: int) -> Iterator[tuple[Any, int]]:
        """This worker's batches of an epoch, each with its samples."""

    def refresh(self, model: Any) -> None:
        """Before figures are taken: the newest parameters."""

    def end_epoch(self, model: Any) -> None:
        """The same after an epoch's batches, before its figures are told."""

    def told(self, model: Any) -> None:
        """The callbacks have been told of an epoch; one may have asked to stop."""

    def finish(self, model: Any) -> None:
        """After the last epoch."""


@dataclass
class Fit:
    """One call of fit. offset: of the passes over the data before it."""

    model: Any
    steps: Steps
    source: Arrays | Batches
    validation: Arguments | None
    offset: int
    passes: Passes


def fit(model: Any, steps: Steps, passes: Passes, seed: int, given: Arguments) -> Any:
    """Keras's own `fit`, step by step. given: its arguments."""
    checks.check_compiled(model)
    _check(model, given)
    if given["validation_split"] and given["validation_data"] is None:
        arrays = (given["x"], given["y"], given["sample_weight"])
        split, given["validation_data"] = private.split(arrays, given["validation_split"])
        given["x"], given["y"], given["sample_weight"] = split
    source = find(
        given["x"], given["y"], given["sample_weight"], batch_size=given["batch_size"],
        shuffle=given["shuffle"], class_weight=given["class_weight"], seed=seed, passes=passes,
        parts=1,
    )  # fmt: skip
    first = given["initial_epoch"]
    passes.next = max(passes.next, first)
    run = Fit(model, steps, source, _validation(given), passes.next - first, passes)
    listed = _listed(model, source, steps.rank, given)
    model.stop_training = False
    listed.on_train_begin()
    step = steps.begin(model, source)
    logs: Arguments = {}
    for epoch in range(first, given["epochs"]):
        logs = _epoch(run, epoch, step, listed, given["validation_freq"])
        if model.stop_training:
            break
    steps.finish(model)
    listed.on_train_end(logs)
    return model.history


def _epoch(run: Fit, epoch: int, step: Callable[[Any, int], Any], listed: Any, every: Any) -> Any:
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
    """The callbacks, the progress bar among them on rank 0."""
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
        what = f"steps_per_epoch={given['steps_per_epoch']}", "Leave it out: an epoch is all data"
    elif model.steps_per_execution > 1:
        what = f"steps_per_execution={model.steps_per_execution}", "Leave it at 1"
    elif any(
        isinstance(c, keras.callbacks.BackupAndRestore)
        for c in private.tree.flatten(given["callbacks"] or [])
    ):
        what = "BackupAndRestore", "Save with ModelCheckpoint, or use snapshot_every="
    if what is not None:
        raise Unsupported(
            f"Replicas that step alone cannot do this. Received: {what[0]}. {what[1]}."
        )
