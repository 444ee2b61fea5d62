"""fit, evaluate and predict of a model that is split: Keras's own loops around dream's steps.

Keras asks the model for the function that takes a step on an iterator; here it takes the next
global batch and hands it to what runs the model.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from functools import cached_property, wraps
from inspect import signature
from pathlib import Path
from types import MethodType
from typing import Any, Literal, Protocol, final

import keras
import tensorflow as tf

from dream._errors import Unsupported
from dream._topology import Topology
from dream.adapters.keras import fit, private
from dream.adapters.keras.checkpoint import model_files
from dream.adapters.keras.data.resume import FitProgress
from dream.adapters.keras.engine import Engine
from dream.adapters.keras.optimizer import optimizers_of
from dream.adapters.tensorflow.parallel.consistency import whole
from dream.collectives import Communicator
from dream.data import tracked

Kind = Literal["train", "test", "predict"]
_KINDS: tuple[Kind, ...] = ("train", "test", "predict")
_OF_LOGS = (keras.callbacks.CSVLogger, keras.callbacks.TensorBoard)
"""Callbacks that write logs, and read no weights."""


class SplitRunner(Protocol):
    """Runs the models of a block."""

    def optimizer(self, optimizer: Any) -> Any:
        """Change on the instance what an optimizer does, as update_options ask for."""

    def function(self, model: Any, kind: Kind) -> Callable[[Any, bool], Any]:
        """From a global batch, as Keras gives it, the logs of a step; the outputs in predict. The
        second argument says whether all batches are of one length, as far as Keras knows: it
        counts the batches of several outputs otherwise."""


@final
class Fitting:
    """Has the models of one block trained by a runner."""

    def __init__(self, runner: SplitRunner, engine: Engine, topology: Topology) -> None:
        self._runner = runner
        self._engine = engine
        self._rank = topology.rank
        self._ranks = topology.world_size

    def take(self, model: Any) -> Any:
        """The model, whose methods on the instance are changed for life."""
        if "make_train_function" in vars(model):
            return model
        state = fit.FitState(self._engine)
        tracked.mark(model, state.progress)
        for name in ("fit", "evaluate", "predict"):
            setattr(model, name, MethodType(self._loop(name, state), model))
        for kind in _KINDS:
            setattr(
                model, f"make_{kind}_function", MethodType(self._maker(kind, state.progress), model)
            )
        model.compile = MethodType(_compile, model)
        for name in ("save", "save_weights", "export"):
            model_files.change(model, name, written_once(self._engine.readers))
        model_files.change(model, "load_weights", model_files.reading)
        return model

    def optimizer(self, optimizer: Any) -> Any:
        return self._runner.optimizer(optimizer)

    def _loop(self, name: str, state: fit.FitState) -> Callable[..., Any]:
        def call(model: Any, *args: Any, **kwargs: Any) -> Any:
            bound = signature(getattr(keras.Model, name)).bind(model, *args, **kwargs)
            bound.apply_defaults()
            del bound.arguments["self"]
            extra = bound.arguments.pop("kwargs", {})
            arguments = {**bound.arguments, **extra}
            if self._rank:
                arguments["verbose"] = 0
            given = arguments["callbacks"]
            arguments["callbacks"] = _callbacks_for(given, self._rank, self._ranks)
            if name == "fit":
                return fit.fit(model, state, arguments)
            return getattr(type(model), name)(model, **arguments)

        call.__name__ = name
        return call

    def _maker(self, kind: Kind, progress: FitProgress) -> Callable[..., Any]:
        """Return `make_train_function` or its like, which makes the function of a step."""
        attribute = f"{kind}_function"

        def make(model: Any, force: bool = False) -> Any:
            if getattr(model, attribute) is None or force:
                _check(model)
                for found in optimizers_of(model) if kind == "train" else ():
                    self._runner.optimizer(found)
                step = self._runner.function(model, kind)
                function = _of_list(step) if kind == "predict" else _of_next(step)
                if kind == "train":
                    function = _counted(function, optimizers_of(model), progress)
                setattr(model, attribute, function)
            return getattr(model, attribute)

        return make


def _of_next(step: Callable[[Any, bool], Any]) -> Callable[[Any], Any]:
    return lambda batches: step(_given(next(batches)), _one_length(batches))


def _given(batch: Any) -> Any:
    """A batch without the targets and weights that `train_on_batch` was not given."""
    if isinstance(batch, tuple):
        while len(batch) > 1 and batch[-1] is None:
            batch = batch[:-1]
    return batch


def _counted(
    step: Callable[[Any], Any], optimizers: Sequence[Any], progress: FitProgress
) -> Callable[[Any], Any]:
    """Keras's own step counts one more iteration where it finds that data of unknown length have
    ended, which Adam's next update feels, unless it counts behind a condition, as where gradients
    add up over batches; an epoch that goes on is over after the last batch."""

    def call(batches: Any) -> Any:
        try:
            return step(batches)
        except StopIteration:
            for optimizer in () if progress.over else optimizers:
                inner = getattr(optimizer, "inner_optimizer", optimizer)
                if not inner.gradient_accumulation_steps:
                    inner.iterations.assign_add(1)
            raise

    return call


def _of_list(step: Callable[[Any, bool], Any]) -> Callable[[Any], Any]:
    """predict gives its function a list of one batch."""
    return lambda batches: step(batches[0], False)


def _one_length(batches: Any) -> bool:
    specs = tf.nest.flatten(getattr(batches, "element_spec", None))
    return all(spec is None or spec.shape.rank == 0 or spec.shape[0] for spec in specs)


def _compile(model: Any, *args: Any, **kwargs: Any) -> None:
    type(model).compile(model, *args, **kwargs)
    given = signature(type(model).compile).bind(model, *args, **kwargs).arguments
    if given.get("jit_compile") is True:
        raise Unsupported(
            "XLA cannot compile a step that is split. Received: jit_compile=True. Remove "
            "jit_compile."
        )
    model.jit_compile = False


def _check(model: Any) -> None:
    if model.run_eagerly or model.steps_per_execution > 1:
        raise Unsupported(
            "A split model takes one compiled step at a time. Received: "
            f"run_eagerly={model.run_eagerly}, steps_per_execution={model.steps_per_execution}. "
            "Leave both out of compile."
        )


@final
class _Target:
    """Where a rank is told to save a model. Every rank asks, and by then all are about to save."""

    def __init__(self, ranks: Communicator, filepath: Any) -> None:
        self._ranks = ranks
        self._named = isinstance(filepath, (str, os.PathLike))
        self._path = str(Path(filepath).resolve()) if self._named else None

    @cached_property
    def own(self) -> bool:
        """Whether it is another path than rank 0's, such as one in a folder of tempfile's."""
        return bool(self._path != self._ranks.broadcast_object(self._path))

    @property
    def here(self) -> bool:
        """Whether this rank writes."""
        return self.own or self._ranks.rank == 0 or not self._named


def written_once(ranks: Communicator) -> Callable[[Callable[..., Any], str], Callable[..., Any]]:
    """Make of a function that saves a model one that all ranks call, and rank 0 writes, with those
    that were told another path: the rest do not hold it. What goes to an open file or buffer is
    each rank's own."""

    def writing(save: Callable[..., Any], name: str) -> Callable[..., Any]:
        @wraps(save)
        def write(self: Any, filepath: Any, *args: Any, **kwargs: Any) -> Any:
            target = _Target(ranks, filepath)
            with whole(self, here=lambda: target.here):
                own = model_files.writing(save, name, follow=not target.own)
                return own(self, filepath, *args, **kwargs)

        return write

    return writing


def _callbacks_for(given: Any, rank: int, world_size: int) -> Any:
    """The callbacks of fit that run on this rank: all that may read weights, so on all ranks."""
    if world_size == 1:
        return given
    listed = isinstance(given, keras.callbacks.CallbackList)
    found = list(given.callbacks) if listed else private.tree.flatten(given or [])
    for callback in found:
        _check_callback(callback, world_size)
    if rank == 0 or listed:
        return given
    return [c for c in found if not isinstance(c, _OF_LOGS)]


def _check_callback(callback: Any, world_size: int) -> None:
    if isinstance(callback, keras.callbacks.SwapEMAWeights):
        raise Unsupported(
            "This callback swaps whole weights, and they lie on all ranks. Received: "
            f"SwapEMAWeights with a model in parts, world size {world_size}. Give the optimizer "
            "ema_overwrite_frequency in its place, or use 'mirrored'."
        )
    reads = isinstance(callback, keras.callbacks.TensorBoard) and callback.histogram_freq
    if reads or isinstance(callback, keras.callbacks.BackupAndRestore):
        what = "TensorBoard(histogram_freq=...)" if reads else "BackupAndRestore"
        raise Unsupported(
            "This callback reads weights on the rank that writes, and they lie on all ranks. "
            f"Received: {what} with a model in parts, world size {world_size}. Use "
            "ModelCheckpoint, which works here."
        )
