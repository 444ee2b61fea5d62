"""fit, evaluate, predict and their one-batch forms, on data that dream deals.

Keras's own loops run; they are given dealt data, this rank's callbacks, and a progress bar on
rank 0 only.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property, partial
from typing import Any, final

import keras
from keras import tree

from dream.adapters.keras import callbacks, checks, consistency, optimizer, predicting, private
from dream.adapters.keras.data import alike
from dream.adapters.keras.data import private as private_data
from dream.adapters.keras.data.on_batch import GivenBatches
from dream.adapters.keras.data.resume import FitProgress
from dream.adapters.keras.data.sources import (
    Arrays,
    Batches,
    DataPasses,
    check_auto_shard,
    find,
    in_parts,
)
from dream.adapters.keras.engine import Engine
from dream.adapters.keras.randomness.in_step import InStep, reading_ahead
from dream.adapters.keras.randomness.start import seed_of_order
from dream.adapters.keras.update import batch_norm
from dream.adapters.keras.update.drift import CopiesGuard, guard_of
from dream.checkpoint.leaving import Notice
from dream.cluster import settings
from dream.data.alike import Looks
from dream.mixed.resync import Resync

Arguments = dict[str, Any]
_CACHED = "_use_cached_eval_dataset"


@final
class FitState:
    """One model's fits, from its creation on.

    prepared: whether the ranks have agreed on variables. resync: what keeps ranks of two
    frameworks together, once the model is trained. looks: when what is evaluated or predicted is
    compared between ranks. trained_on, tested_on: batches of loops of the user's own. guard: finds
    replicas that drift apart, where there are several.
    """

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self.progress = FitProgress(engine.generators)
        self.prepared = False
        self.looks = Looks()
        self.trained_on = GivenBatches(engine)
        self.tested_on = GivenBatches(engine)
        self.resync: Resync | None = None
        self.guard = CopiesGuard(engine) if engine.pooled else guard_of(engine)
        self.in_step = InStep(engine)


def fit(model: Any, state: FitState, given: Arguments) -> Any:
    """Fit; a fit that is saved hears from here on that it is to leave: models are built and
    compiled before the first step."""
    notice = Notice(settings.end_of_time())
    if callbacks.saves(given["callbacks"]):
        notice.listen()
    try:
        return _fit(model, state, given, notice)
    finally:
        notice.rest()


def _fit(model: Any, state: FitState, given: Arguments, notice: Notice) -> Any:
    engine, progress = state.engine, state.progress
    checks.check_own_loop(model, "fit", engine)
    split_validation(given)
    optimizer.take_all(model, engine)
    if engine.readers.world_size > 1 or engine.parts > 1:
        checks.report_generators(given["x"], given["validation_data"], engine)
    engine.note_batch(given["x"], None)
    if not engine.steps and _in_own_order(given["x"]):
        progress.begin_unordered(type(given["x"]).__name__)
        notice.rest()
        return type(model).fit(model, **given)
    steps = given["steps_per_epoch"]
    seed = engine.seed
    if seed is None:
        seed = seed_of_order(engine.readers, engine.generators, given)
    first = given["initial_epoch"]
    given["initial_epoch"] = progress.begin_fit(first, seed, by_epoch=steps is None)
    source = _source(
        engine, given, steps=steps, passes=progress.passes, parted=engine.parted,
        shuffle=given["shuffle"], class_weight=given["class_weight"],
    )  # fmt: skip
    if engine.parted:
        source = in_parts(source, given["x"], steps, model.steps_per_execution)
    engine.note_batch(given["x"], source.batch_size)
    alike.compare_arrays(source, engine)
    if engine.steps:
        _prepare(model, state, source, training=True)
    elif progress.resuming or callbacks.may_go_on(given["callbacks"]):
        _build(model, engine, source)
    if engine.parts > 1:
        given["validation_data"] = _validation(given, engine)
    unordered = "" if source.fixed else type(given["x"]).__name__
    progress.read_from(source, unordered if steps is None else f"steps_per_epoch={steps}")
    progress.ended = (lambda: engine.over) if _is_parted(source) else (lambda: False)
    progress.metrics = partial(consistency.metric_values, model)
    users = given["callbacks"]
    _give(given, source, engine)
    given.update(class_weight=None, shuffle=False)
    given["callbacks"] = callbacks.for_fit(
        given["callbacks"], engine, progress, state.resync, notice
    )
    read = [d for d in (given["x"], given["validation_data"]) if isinstance(d, DealtData)]
    with reading_ahead(any(data.in_threads for data in read)):
        history = type(model).fit(model, **given)
    if state.guard is not None:
        state.guard.compare(model)
    else:
        state.in_step.settle(model)
    if engine.several_processes:
        callbacks.settle(users, engine)  # what rank 0 wrote is there for all to read
    return history


def evaluate(model: Any, state: FitState, given: Arguments) -> Any:
    engine = state.engine
    checks.check_own_loop(model, "evaluate", engine)
    if given.get(_CACHED):
        return type(model).evaluate(model, **given)
    checks.check_compiled(model)
    source = _source(engine, given, steps=given["steps"])
    if state.looks.due():
        alike.compare_arrays(source, engine)
    _prepare(model, state, source, training=False)
    _give(given, source, engine)
    return type(model).evaluate(model, **given)


def train_on_batch(model: Any, state: FitState, given: Arguments) -> Any:
    """Step on a global batch, given whole on every rank and dealt out here; or on a share that the
    user has sliced, which counts as an equal one."""
    _prepare_on(model, state, given)
    if state.resync is not None:
        state.resync.before_step()
    return type(model).train_on_batch(model, **state.trained_on.dealt(given))


def test_on_batch(model: Any, state: FitState, given: Arguments) -> Any:
    """Evaluate a global batch, or a share of one."""
    _prepare_on(model, state, given)
    return type(model).test_on_batch(model, **state.tested_on.dealt(given))


LOOPS: dict[str, Callable[..., Any]] = {
    "fit": fit,
    "evaluate": evaluate,
    "predict": predicting.predict,
    "train_on_batch": train_on_batch,
    "test_on_batch": test_on_batch,
    "predict_on_batch": predicting.predict_on_batch,
}


def split_validation(given: Arguments) -> None:
    """Set the validation_split of arrays apart, as Keras does."""
    if given["validation_split"] and given["validation_data"] is None:
        arrays = (given["x"], given["y"], given["sample_weight"])
        split, given["validation_data"] = private_data.split(arrays, given["validation_split"])
        given["x"], given["y"], given["sample_weight"] = split
    given["validation_split"] = 0.0


def make_train_function(model: Any, state: FitState, force: bool = False) -> Any:
    """Make what takes a step of fit: Keras's own, counted, and not once too often. Before it,
    replicas are compared."""
    if model.train_function is not None and not force:
        return model.train_function
    type(model).make_train_function(model, force=force)
    step, progress = model.train_function, state.progress
    progress.steps = progress.steps or 0

    def counted(data: Any) -> Any:
        if progress.over or progress.ended():
            raise StopIteration
        if state.guard is not None:
            state.guard.before_step(model)
        _follow_speeds(model, state.engine)
        logs = step(data)
        progress.steps = (progress.steps or 0) + 1
        return logs

    model.train_function = counted
    return counted


def _follow_speeds(model: Any, engine: Engine) -> None:
    """Divide batches by the ranks' speeds, now and then, where that is asked for."""
    if engine.pace is None:
        return
    blind = partial(batch_norm.synchronises, model, engine)
    if engine.pace.before_step(model.steps_per_execution, blind):
        engine.redivided()


def _in_own_order(x: Any) -> bool:
    """Whether one device takes samples in another order than dream's."""
    return private_data.is_tf_dataset(x) or hasattr(x, "__next__") or hasattr(x, "batch_sampler")


def _source(
    engine: Engine,
    given: Arguments,
    *,
    steps: Any,
    passes: DataPasses | None = None,
    parted: bool = False,
    **options: Any,
) -> Arrays | Batches:
    if engine.readers.world_size > 1 and not parted:
        check_auto_shard(given["x"])
    return find(
        given["x"], given["y"], given["sample_weight"], batch_size=given["batch_size"],
        steps=steps, passes=passes or DataPasses(), parts=engine.parts, **options,
    )  # fmt: skip


def _is_parted(source: Arrays | Batches) -> bool:
    return isinstance(source, Batches) and source.parted


def _validation(given: Arguments, engine: Engine) -> Any:
    if given["validation_data"] is None:
        return None
    x, y, weight = keras.utils.unpack_x_y_sample_weight(given["validation_data"])
    size = given["validation_batch_size"] or given["batch_size"]
    whole = {"x": x, "y": y, "sample_weight": weight, "batch_size": size}
    find_it = partial(_source, engine, whole, steps=given["validation_steps"])
    if hasattr(x, "__next__"):
        # Keras looks at a generator's first batches when it first validates, and so they are drawn.
        return DealtData(engine, find_it)
    source = find_it()
    alike.compare_arrays(source, engine)
    # So it does at those of a PyDataset.
    return DealtData(engine, source, later=isinstance(x, keras.utils.PyDataset))


def _give(given: Arguments, source: Arrays | Batches, engine: Engine) -> None:
    """Have a loop read dealt data, with the callbacks that belong here and one progress bar for
    all ranks."""
    given.update(
        x=DealtData(engine, source), y=None, sample_weight=None,
        callbacks=callbacks.of_rank(given["callbacks"], engine.rank),
        verbose=given["verbose"] if engine.rank == 0 else 0,
    )  # fmt: skip


def _build(model: Any, engine: Engine, source: Arrays | Batches) -> None:
    """Make what Keras makes in the first step: metrics too, whose states may be set before it."""
    checks.check_compiled(model)
    if private.awaits_batch(model):
        private.build(model, private.symbolic(engine.example(source)))


def _prepare_on(model: Any, state: FitState, given: Arguments) -> None:
    if not state.prepared or private.awaits_batch(model):
        arrays = (given["x"], given["y"], given["sample_weight"])
        example = tree.map_structure(
            lambda a: None if a is None else keras.ops.convert_to_tensor(a), arrays
        )
        _prepare(model, state, example, training=True)


def _prepare(model: Any, state: FitState, example: Any, *, training: bool) -> None:
    """Build, check, and let the ranks agree: before every fit, once before anything else.

    example: a batch as the model is given it, or a source of such.
    """
    engine = state.engine
    checks.check_compiled(model)
    if state.prepared and not training:
        return
    if isinstance(example, (Arrays, Batches)):
        awaits = private.awaits_batch(model) or consistency.awaits_step(model, engine)
        example = engine.example(example) if awaits else None
    engine.take_over(model)
    optimizer.take_all(model, engine)
    consistency.build(model, engine, example)
    if engine.several_processes or not engine.pooled:
        consistency.agree(model, engine)
    if not state.prepared:
        if engine.resyncs is not None:
            state.resync = engine.resyncs.add(
                engine.communicator, lambda: consistency.take_weights(model, engine)
            )
        consistency.report_local_statistics(model, engine)
        consistency.report_micro_draws(model, engine)
    state.prepared = True


@final
class DealtData(private_data.DataAdapter):  # type: ignore[misc]  # Keras is untyped
    """A source dealt by an engine, which Keras's trainers take for `x` as it is."""

    def __init__(
        self,
        engine: Engine,
        source: Arrays | Batches | Callable[[], Arrays | Batches],
        *,
        later: bool = False,
    ) -> None:
        """source: or what finds it, once it is asked for. later: whether what draws as it is made
        draws then, too."""
        self._engine = engine
        self._given = source
        if not callable(source) and not later:
            self._elements  # noqa: B018  # what draws as it is made draws now

    @cached_property
    def _source(self) -> Arrays | Batches:
        return self._given() if callable(self._given) else self._given

    @property
    def in_threads(self) -> bool:
        """Whether Python code makes the batches ahead of their steps, in threads."""
        by_tensorflow = self._engine.framework == "tensorflow"
        if callable(self._given):
            return by_tensorflow
        source = self._given
        return isinstance(source, Batches) and private_data.read_in_threads(
            source.adapter, by_tensorflow
        )

    @cached_property
    def _elements(self) -> Any:
        source = self._source
        if isinstance(source, Batches):
            return self._engine.batches(source)
        return self._engine.arrays(source)

    def get_tf_dataset(self) -> Any:
        return self._elements

    def get_torch_dataloader(self) -> Any:
        return self._elements

    @property
    def num_batches(self) -> int | None:
        return self._source.num_batches

    @property
    def batch_size(self) -> int | None:
        return self._source.batch_size

    def on_epoch_begin(self) -> None:
        self._source.begin_epoch()

    def on_epoch_end(self) -> None:
        self._source.end_epoch()
