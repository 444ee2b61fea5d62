"""fit, evaluate, predict and their one-batch forms, on data that dream deals.

Keras's own loops run; they are given dealt data, this rank's callbacks, and a progress bar on
rank 0 only.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, final

import keras

from dream._errors import Unsupported
from dream.adapters.keras import callbacks, optimizer, private, start
from dream.adapters.keras.data.adapter import Dealt
from dream.adapters.keras.data.sources import Arrays, Batches, Passes, find
from dream.adapters.keras.data.standing import Standing, counting
from dream.adapters.keras.engine import Engine
from dream.adapters.keras.prediction import predict
from dream.mixed.resync import Resync

Arguments = dict[str, Any]
_CACHED = "_use_cached_eval_dataset"


@final
class State:
    """What dream knows of one model.

    passes: over training data so far. standing: where fit is in them. prepared: whether the ranks
    have agreed on variables.
    resync: what keeps ranks of two frameworks together, once the model is trained.
    """

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self.passes = Passes()
        self.standing = Standing(self.passes)
        self.prepared = False
        self.resync: Resync | None = None


def fit(model: Any, state: State, given: Arguments) -> Any:
    engine = state.engine
    _check_own(model, "fit", engine)
    if given["validation_split"] and given["validation_data"] is None:
        arrays = (given["x"], given["y"], given["sample_weight"])
        split, given["validation_data"] = private.split(arrays, given["validation_split"])
        given["x"], given["y"], given["sample_weight"] = split
    given["validation_split"] = 0.0
    for found in start.optimizers_of(model):
        optimizer.take(found, engine)
    if not engine.steps and _yields_batches(given["x"]):
        state.standing.unknown(type(given["x"]).__name__)
        return type(model).fit(model, **given)
    return _fit(model, state, given)


def _fit(model: Any, state: State, given: Arguments) -> Any:
    engine = state.engine
    state.passes.next = max(state.passes.next, given["initial_epoch"])
    first = given["initial_epoch"] = state.standing.first_epoch(given["initial_epoch"])
    by_epoch = given["steps_per_epoch"] is None
    source = find(
        given["x"], given["y"], given["sample_weight"], batch_size=given["batch_size"],
        steps=given["steps_per_epoch"], shuffle=given["shuffle"],
        class_weight=given["class_weight"], seed=engine.seed, passes=state.passes,
        parts=engine.parts,
    )  # fmt: skip
    if engine.steps:
        _prepare(model, state, source, training=True)
    if engine.parts > 1:
        given["validation_data"] = _validation(given, engine)
    dealt = Dealt(engine, source)
    state.standing.reads(dealt, _order_unknown(given, dealt))
    given.update(
        _quiet(given, engine), x=dealt, y=None, sample_weight=None, class_weight=None,
        shuffle=False,
    )  # fmt: skip
    backups = callbacks.backups(given["callbacks"], state.standing)
    counted = counting(state.standing, state.passes, given["callbacks"], first, by_epoch=by_epoch)
    given["callbacks"] = callbacks.before(counted, given["callbacks"])
    ours = [callbacks.Follow(engine, state.standing, backups)]
    if state.resync is not None:
        ours.append(callbacks.Resynchronise(state.resync))
    given["callbacks"] = callbacks.joined(given["callbacks"], ours)
    history = type(model).fit(model, **given)
    if engine.parts > 1 and not engine.pooled:
        engine.communicator.barrier()  # what rank 0 wrote is there for all to read
    return history


def _order_unknown(given: Mapping[str, Any], dealt: Dealt) -> str:
    """Why another process may be given other batches; nothing where it is not."""
    if given["steps_per_epoch"] is not None:
        return f"steps_per_epoch={given['steps_per_epoch']}"
    return "" if dealt.fixed else type(given["x"]).__name__


def _yields_batches(x: Any) -> bool:
    """Whether one device takes samples in another order than dream's."""
    return private.is_tf_dataset(x) or hasattr(x, "__next__") or hasattr(x, "batch_sampler")


def _validation(given: Arguments, engine: Engine) -> Any:
    if given["validation_data"] is None:
        return None
    x, y, weight = keras.utils.unpack_x_y_sample_weight(given["validation_data"])
    size = given["validation_batch_size"] or given["batch_size"]
    source = find(
        x, y, weight, batch_size=size, steps=given["validation_steps"], seed=engine.seed,
        passes=Passes(), parts=engine.parts,
    )  # fmt: skip
    return Dealt(engine, source)


def evaluate(model: Any, state: State, given: Arguments) -> Any:
    engine = state.engine
    _check_own(model, "evaluate", engine)
    if given.get(_CACHED):
        return type(model).evaluate(model, **given)
    start.check_compiled(model)
    source = find(
        given["x"], given["y"], given["sample_weight"], batch_size=given["batch_size"],
        steps=given["steps"], seed=engine.seed, passes=Passes(), parts=engine.parts,
    )  # fmt: skip
    _prepare(model, state, source, training=False)
    given.update(_quiet(given, engine), x=Dealt(engine, source), y=None, sample_weight=None)
    return type(model).evaluate(model, **given)


def train_on_batch(model: Any, state: State, given: Arguments) -> Any:
    """A step on a batch that counts as an equal share: the whole batch on every rank, or a share
    that the user has sliced."""
    _prepare_on(model, state, given)
    if state.resync is not None:
        state.resync.before_step()
    return type(model).train_on_batch(model, **given)


def test_on_batch(model: Any, state: State, given: Arguments) -> Any:
    """Figures of a batch that counts as an equal share."""
    _prepare_on(model, state, given)
    return type(model).test_on_batch(model, **given)


def _prepare_on(model: Any, state: State, given: Arguments) -> None:
    if not state.prepared:
        arrays = (given["x"], given["y"], given["sample_weight"])
        example = private.tree.map_structure(
            lambda a: None if a is None else keras.ops.convert_to_tensor(a), arrays
        )
        _prepare(model, state, example, training=True)


def _prepare(model: Any, state: State, example: Any, *, training: bool) -> None:
    """Build, check, and let the ranks agree: before every fit, once before anything else.

    example: a batch as the model is given it, or what `Engine.example` makes of a source.
    """
    engine = state.engine
    start.check_compiled(model)
    if state.prepared and not training:
        return
    if isinstance(example, (Arrays, Batches)):
        example = engine.example(example)
    engine.take_over(model)
    for found in start.optimizers_of(model):
        optimizer.take(found, engine)
    start.prepare(model, engine, example)
    if not engine.pooled:
        start.agree(model, engine)
    if not state.prepared:
        if engine.resyncs is not None:
            communicator = engine.communicator
            state.resync = engine.resyncs.add(
                communicator, lambda: start.same_weights(model, engine)
            )
        start.offset_seeds(model, engine)
        start.tell_of_statistics(model, engine)
    state.prepared = True


def _quiet(given: Mapping[str, Any], engine: Engine) -> Arguments:
    """One progress bar for all ranks, and the callbacks that belong here."""
    return {
        "verbose": given["verbose"] if engine.rank == 0 else 0,
        "callbacks": callbacks.for_rank(given["callbacks"], engine),
    }


def _check_own(model: Any, name: str, engine: Engine) -> None:
    if engine.parts > 1 and getattr(type(model), name) is not getattr(keras.Model, name):
        raise Unsupported(
            f"A model with its own {name} cannot be distributed. Received: "
            f"{type(model).__name__}.{name}. Override train_step or test_step in its place."
        )


LOOPS: dict[str, Callable[..., Any]] = {
    "fit": fit,
    "evaluate": evaluate,
    "predict": predict,
    "train_on_batch": train_on_batch,
    "test_on_batch": test_on_batch,
}
