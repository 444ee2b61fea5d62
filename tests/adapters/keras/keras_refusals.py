"""What the block must refuse, and what it must leave behind; run on every rank."""

from __future__ import annotations

import logging
import os
import traceback
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import keras
import numpy as np
from keras import layers
from keras_cases import BATCH, arrays, compiled, fitted, loss, net

import dream
from dream.data.partition import epoch_order

Refusal = Callable[[dict[str, Any]], None]
REFUSALS: dict[str, Refusal] = {}


def refusal(function: Refusal) -> Refusal:
    REFUSALS[function.__name__] = function
    return function


def run(options: dict[str, Any], names: list[str]) -> dict[str, str]:
    """What each of these refusals said here."""
    said = {}
    for name in names:
        try:
            REFUSALS[name](options)
        except Exception as error:
            said[name] = f"{type(error).__name__}: {error}"
        else:
            said[name] = "nothing"
    return said


def block(options: dict[str, Any]) -> Any:
    return dream.strategy("mirrored", **options)


@refusal
def unreduced_loss(options: dict[str, Any]) -> None:
    with block(options):
        fitted(compiled(net(), loss=loss(reduction=None)))


@refusal
def loss_that_compares_rows(options: dict[str, Any]) -> None:
    """One of Keras's own."""
    with block({**options, "strict": True}):
        fitted(compiled(net(keras.layers.UnitNormalization()), loss=keras.losses.Circle()))


class Once(keras.utils.PyDataset):  # type: ignore[misc]  # Keras is untyped
    """Batches for one epoch."""

    left = 2

    def __len__(self) -> int:
        return self.left

    def __getitem__(self, index: int) -> Any:
        return arrays(BATCH)

    def on_epoch_end(self) -> None:
        self.left = 0


@refusal
def epoch_without_a_step(options: dict[str, Any]) -> None:
    """Data that are through when the second epoch begins."""
    with block(options):
        compiled(net()).fit(Once(), epochs=2, verbose=0)


class Ending(keras.Model):
    """A step that raises what Keras takes for the end of the data."""

    def train_step(self, data: Any) -> Any:
        return next(iter(()))


@refusal
def step_that_ends_itself(options: dict[str, Any]) -> None:
    with block(options):
        inputs = keras.Input((8,))
        fitted(compiled(Ending(inputs, layers.Dense(4)(inputs))))


@refusal
def other_gradients_of_the_users_own_loop(options: dict[str, Any]) -> None:
    """Of a share that the loop took for itself."""
    mine = 1.0 + int(os.environ.get("RANK", "0"))
    with block(options):
        model, optimizer = net(), keras.optimizers.SGD(0.1)
        gradients = [np.full(v.shape, mine, "float32") for v in model.trainable_variables]
        optimizer.apply(gradients, model.trainable_variables)


@refusal
def recompute_auto(options: dict[str, Any]) -> None:
    """Of which the budget is not given."""
    with block({**options, "recompute": "auto"}):
        compiled(net()).fit(*arrays(), verbose=0)


def divided(policy: str) -> Any:
    """A dataset that asks to be divided among processes so."""
    import tensorflow as tf

    options = tf.data.Options()
    asked = getattr(tf.data.experimental.AutoShardPolicy, policy)
    options.experimental_distribute.auto_shard_policy = asked
    return tf.data.Dataset.from_tensor_slices(arrays()).batch(BATCH).with_options(options)


def sparse_and_ragged() -> list[str]:
    """What fits on sparse arrays, sparse batches, one of them, and ragged ones end in."""
    import tensorflow as tf

    x, y = arrays()
    sparse, ragged = tf.sparse.from_dense(x), tf.RaggedTensor.from_tensor(x)
    said = []
    with block({}):
        model = compiled(net())
        for fit in (
            lambda: model.fit(sparse, y, verbose=0),
            lambda: model.fit(tf.data.Dataset.from_tensor_slices((sparse, y)).batch(8), verbose=0),
            lambda: model.train_on_batch(sparse, y),
            lambda: model.fit(tf.data.Dataset.from_tensor_slices((ragged, y)).batch(8), verbose=0),
        ):
            try:
                fit()
            except dream.Unsupported as error:
                said.append(str(error))
    return said


def steps_of_unknown_number() -> str:
    """What is said where a batch has as many rows as its series have steps, and a share fewer."""
    import tensorflow as tf

    with dream.strategy("mirrored"):
        seen = keras.Input((BATCH, 1))
        steps = layers.TimeDistributed(layers.Dense(2))(seen)
        made = compiled(keras.Model(seen, layers.Dense(1)(layers.Flatten()(steps))))
        x = np.ones((BATCH, BATCH, 1), "float32")
        spec = tf.TensorSpec((None, None, 1)), tf.TensorSpec((None, 1))
        data = tf.data.Dataset.from_generator(lambda: iter([(x, x[:, 0])]), output_signature=spec)
        try:
            made.fit(data, verbose=0)
        except dream.Unsupported as error:
            return str(error)
    return "nothing"


def images_of_unknown_number() -> str:
    """What is said where Keras would take the first image of a batch for all."""
    with dream.strategy("mirrored"):
        seen = keras.Input((6, 6, 3))
        made = layers.Flatten()(layers.RandomElasticTransform(value_range=(0, 1))(seen))
        model = compiled(keras.Model(seen, layers.Dense(1)(made)))
        x = np.ones((BATCH, 6, 6, 3), "float32")
        try:
            model.fit(x, x[:, 0, 0, :1], verbose=0)
        except dream.Unsupported as error:
            return str(error)
    return "nothing"


@refusal
def other_auto_shard_policy_off(options: dict[str, Any]) -> None:
    with block(options):
        compiled(net()).fit(divided("OFF"), verbose=0)


@refusal
def other_auto_shard_policy_file(options: dict[str, Any]) -> None:
    with block(options):
        compiled(net()).fit(*arrays(), validation_data=divided("FILE"), verbose=0)


def fits_what_is_divided_by_samples(options: dict[str, Any]) -> Any:
    """The weights after a fit, from the same start; one process may ask for anything."""
    several = int(os.environ.get("WORLD_SIZE", "1")) > 1
    found = []
    with block(options):
        for policy in ("AUTO", "DATA" if several else "OFF"):
            keras.utils.set_random_seed(3)
            model = compiled(net())
            model.fit(divided(policy), verbose=0)
            found.append(model.get_weights())
    return found


@refusal
def generators_of_other_batches(options: dict[str, Any]) -> None:
    """Not seeded alike."""

    def batches() -> Iterator[Any]:
        draw = np.random.default_rng(int(os.environ.get("RANK", "0")))
        for _ in range(4):
            x, y = arrays(BATCH)
            yield x + draw.normal(size=x.shape).astype(np.float32), y

    with block(options):
        compiled(net()).fit(batches(), verbose=0)


@refusal
def batch_smaller_than_replicas(options: dict[str, Any]) -> None:
    with block(options):
        fitted(compiled(net()), batch_size=1)


class Largest(keras.metrics.Metric):
    """A maximum, which says that it is no sum."""

    def __init__(self) -> None:
        super().__init__(name="largest")
        self.value = self.add_variable((), "zeros", aggregation="none", name="value")

    def update_state(self, y_true: Any, y_pred: Any, sample_weight: Any = None) -> None:
        self.value.assign(keras.ops.maximum(self.value, keras.ops.max(y_pred)))

    def result(self) -> Any:
        return self.value


@refusal
def metric_that_is_no_sum(options: dict[str, Any]) -> None:
    with block(options):
        fitted(compiled(net(), metrics=[Largest()]))


@refusal
def draws_of_each_rank(options: dict[str, Any]) -> None:
    with block({**options, "randomness": "local"}):
        net()


@refusal
def not_compiled(options: dict[str, Any]) -> None:
    with block(options):
        fitted(net())


def own(array: Any) -> Any:
    """On other ranks than 0, other values of the same shape."""
    return array if os.environ.get("RANK", "0") == "0" else array[::-1].copy()


@refusal
def other_inputs_on_each_rank(options: dict[str, Any]) -> None:
    """An unseeded split, say."""
    x, y = arrays()
    with block(options):
        compiled(net()).fit(own(x), y, batch_size=BATCH, verbose=0)


@refusal
def other_labels_on_each_rank(options: dict[str, Any]) -> None:
    """A map of labels from a set of strings, say; of many samples, a few are looked at."""
    x, y = (np.concatenate([a] * 4000) for a in arrays())
    assert y.nbytes > 2**20
    with block(options):
        compiled(net()).fit(x, y if os.environ.get("RANK", "0") == "0" else 3 - y, verbose=0)


@refusal
def other_files_on_each_rank(options: dict[str, Any]) -> None:
    """One sample less."""
    x, y = arrays()
    less = len(x) - int(os.environ.get("RANK", "0"))
    with block(options):
        compiled(net()).fit(x[:less], y[:less], batch_size=BATCH, verbose=0)


@refusal
def other_validation_on_each_rank(options: dict[str, Any]) -> None:
    x, y = arrays()
    with block(options):
        compiled(net()).fit(x, y, batch_size=BATCH, validation_data=(own(x), y), verbose=0)


@refusal
def other_evaluation_on_each_rank(options: dict[str, Any]) -> None:
    x, y = arrays()
    with block(options):
        compiled(net()).evaluate(own(x), y, verbose=0)


@refusal
def other_prediction_on_each_rank(options: dict[str, Any]) -> None:
    with block(options):
        compiled(net()).predict(own(arrays()[0]), verbose=0)


class Drawn(keras.utils.PyDataset):
    """Batches that every rank draws for itself."""

    num_batches = 2

    def __getitem__(self, index: int) -> Any:
        draw = np.random.default_rng()
        return draw.normal(size=(BATCH, 8)).astype("float32"), draw.integers(0, 4, BATCH)


@refusal
def other_batches_on_each_rank(options: dict[str, Any]) -> None:
    with block(options):
        fitted(compiled(net()), Drawn(), batch_size=None)


def left_behind(options: dict[str, Any]) -> dict[str, Any]:
    """What remains of a block, and what became of the objects made in it."""
    owners = (keras.Model, keras.optimizers.Optimizer, keras.saving, keras.models)
    before = [dict(vars(owner)) for owner in owners]
    with block(options):
        model = compiled(net())
    after = [dict(vars(owner)) for owner in owners]
    return {
        "same": before == after,
        "kinds": (
            type(model) is keras.Sequential,
            isinstance(model.optimizer, keras.optimizers.SGD),
        ),
        "config": model.optimizer.get_config()["momentum"],
    }


def draws_of_micro_batches(options: dict[str, Any], by_hand: bool) -> list[str]:
    """The lines that rank 0 says of a model with dropout, trained in micro-batches. by_hand: by
    the explicit step."""
    lines: list[str] = []
    handler = logging.Handler()
    handler.emit = lambda record: lines.append(record.getMessage())  # type: ignore[method-assign]
    logger = logging.getLogger("dream")
    logger.addHandler(handler)
    try:
        with dream.strategy("mirrored", accumulate=2, **options) as strategy:
            model = net(layers.Dropout(0.5, name="drops"))
            if by_hand:
                step = strategy.train_step(model, loss(), keras.optimizers.SGD(0.1))
                step(*map(keras.ops.convert_to_tensor, arrays(BATCH)))
            else:
                fitted(compiled(model), epochs=1)
    finally:
        logger.removeHandler(handler)
    return lines


class Orders(keras.Model):
    """A model whose one weight adds up what depends on the order in which samples come."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = self.add_weight(shape=(), initializer="zeros", name="weight")

    def call(self, x: Any) -> Any:
        return x[:, 0] * self.weight


def order_of_epochs(options: dict[str, Any]) -> dict[str, Any]:
    """One sample a step would show the order; batches of 3 in 2 parts do by their weights.

    The same by plain Keras on arrays that are in order already: epochs 0 and 1, then 2 of a second
    fit, then 5 of one that says so.
    """
    x = np.arange(1, 10, dtype=np.float32).reshape(9, 1)
    y = np.square(x[:, 0])
    optimizer = {"optimizer": keras.optimizers.SGD(1e-4), "loss": "mse"}
    plain = Orders()
    plain.compile(**optimizer)
    for epoch in (0, 1, 2, 5):
        order = epoch_order(9, seed=6, epoch=epoch, shuffle=True)
        plain.fit(x[order], y[order], batch_size=3, shuffle=False, verbose=0)
    with dream.strategy("mirrored", seed=6, **options):
        model = Orders()
        model.compile(keras.optimizers.SGD(1e-4), "mse")
        model.fit(x, y, batch_size=3, epochs=2, verbose=0)
        model.fit(x, y, batch_size=3, verbose=0)
    model.fit(x, y, batch_size=3, epochs=6, initial_epoch=5, verbose=0)
    return {"plain": float(plain.get_weights()[0]), "dream": float(model.get_weights()[0])}


def kept(options: dict[str, Any], ways: Sequence[bool]) -> dict[Any, Any]:
    """What each of the above gives, or what it raised: a fault is its own alone. ways: of drawing,
    by hand or not."""
    acts: dict[Any, Callable[[], Any]] = {
        "left_behind": partial(left_behind, options),
        "order_of_epochs": partial(order_of_epochs, options),
        **{way: partial(draws_of_micro_batches, options, way) for way in ways},
    }
    found: dict[Any, Any] = {}
    for name, act in acts.items():
        try:
            found[name] = act()
        except Exception:
            found[name] = traceback.format_exc()
    return found
