"""Losses that are no plain means over samples, run by plain Keras and in the block: each case gives
figures that must be the same either way."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
from keras import layers, ops
from keras_cases import BATCH, Block, Figures, arrays, case, compiled, fitted, loss, net, run

__all__ = ["run"]


def weighed(data: Any) -> dict[str, Any]:
    return {"sample_weight": data[2]} if len(data) > 2 else {}


def counted(model: Any, *data: Any, **options: Any) -> Figures:
    """What fit and evaluate end with, steps counted."""
    data = data or arrays()
    figures = fitted(model, *data[:2], **weighed(data), **options)
    said = model.evaluate(*data[:2], **weighed(data), batch_size=BATCH, verbose=0)
    return {**figures, "iterations": int(model.optimizer.iterations), "said": said}


def tokens() -> tuple[np.ndarray, np.ndarray]:
    """Sentences of 1 to 6 words, zeros after them; the lengths are far from even."""
    draw = np.random.default_rng(5)
    words = draw.integers(1, 9, (49, 6))
    words[np.arange(6)[None] >= draw.integers(1, 7, 49)[:, None]] = 0
    words[::3, 1:] = 0
    return words, np.roll(words, 1, axis=1)


def tagger(*between: Any) -> Any:
    keras.utils.set_random_seed(3)
    words = keras.Input((6,), dtype="int32")
    x = layers.Embedding(9, 5, mask_zero=True)(words)
    for layer in between:
        x = layer(x)
    return keras.Model(words, layers.Dense(9)(x))


@case
def summed(block: Block) -> Figures:
    with block:
        optimizer = keras.optimizers.SGD(0.005, momentum=0.9)
        return counted(compiled(net(), loss=loss(reduction="sum"), optimizer=optimizer))


@case
def summed_beside_a_penalty(block: Block) -> Figures:
    with block:
        keras.utils.set_random_seed(3)  # a layer's initializer draws its seed as it is made
        model = net(layers.Dense(8, kernel_regularizer="l2", activity_regularizer="l2"))
        optimizer = keras.optimizers.Adam(0.01)
        return counted(compiled(model, loss=loss(reduction="sum"), optimizer=optimizer))


@case
def mean_with_sample_weight(block: Block) -> Figures:
    x, y = arrays()
    weight = np.linspace(0.0, 3.0, len(y)).astype(np.float32) ** 2
    with block:
        model = compiled(net(), loss=loss(reduction="mean_with_sample_weight"))
        figures = fitted(model, x, y, sample_weight=weight)
        return {**figures, "iterations": int(model.optimizer.iterations)}


@case
def masked_words(block: Block) -> Figures:
    with block:
        return counted(compiled(tagger(), metrics=["accuracy"]), *tokens())


@case
def masked_words_of_a_recurrent_net(block: Block) -> Figures:
    with block:
        return counted(compiled(tagger(layers.GRU(4, return_sequences=True))), *tokens())


@case
def masked_words_with_weights(block: Block) -> Figures:
    words, following = tokens()
    weight = np.linspace(0.5, 2.0, words.size).reshape(words.shape).astype(np.float32)
    with block:
        reduced = loss(reduction="mean_with_sample_weight")
        return fitted(compiled(tagger(), loss=reduced), words, following, sample_weight=weight)


@case
def weighted_metrics_of_masked_words(block: Block) -> Figures:
    """On torch Keras's loss changes the weights of samples in place, which metrics are given
    next."""
    words, following = tokens()
    weight = np.linspace(0.5, 2.0, words.size).reshape(words.shape).astype(np.float32)
    with block:
        model = compiled(tagger(), weighted_metrics=["accuracy", mean_of_rows])
        return counted(model, words, following, weight)


def mean_of_rows(target: Any, predicted: Any) -> Any:
    return keras.losses.sparse_categorical_crossentropy(target, predicted, True)


@case
def classes_that_are_ignored(block: Block) -> Figures:
    """Beside a mask of the outputs, and alone."""
    with block:
        words = counted(compiled(tagger(), loss=loss(ignore_class=3)), *tokens())
        rows = counted(compiled(net(), loss=loss(ignore_class=0)))
    return {"words": words, "rows": rows}


def mean_number(target: Any, predicted: Any) -> Any:
    return ops.mean(keras.losses.sparse_categorical_crossentropy(target, predicted, True))


def summed_number(target: Any, predicted: Any) -> Any:
    return ops.sum(keras.losses.sparse_categorical_crossentropy(target, predicted, True))


@case
def one_number_that_is_a_mean(block: Block) -> Figures:
    with block:
        return counted(compiled(net(), loss=mean_number))


@case
def one_number_that_is_a_sum(block: Block) -> Figures:
    with block:
        return counted(
            compiled(net(), loss=summed_number, optimizer=keras.optimizers.SGD(0.005, 0.9))
        )


def right_ones(y_true: Any, y_pred: Any) -> Any:
    """A count, whose dtype has no fractions, of labels that made-up fractions never equal."""
    return ops.sum(
        ops.cast(ops.equal(ops.cast(ops.argmax(y_pred, -1), "float32"), y_true), "int32")
    )


@case
def metrics_of_one_number(block: Block) -> Figures:
    x, y = arrays()
    with block:
        model = compiled(net(), metrics=[mean_number, summed_number, right_ones])
        return counted(model, x, y.astype("float32"))


@case
def metrics_of_answers_seldom_right(block: Block) -> Figures:
    """Of so many classes that a made-up answer is never right by chance."""
    x, _ = arrays()
    keras.utils.set_random_seed(3)
    with block:
        model = keras.Sequential([keras.Input((8,)), layers.Dense(300)])
        model.compile(keras.optimizers.SGD(2.0), loss(), metrics=[right_ones])
        return counted(model, x, np.arange(len(x)) % 5 + 200.0)


class OwnLoss(keras.losses.Loss):
    """A loss that reduces by itself."""

    def __call__(self, y_true: Any, y_pred: Any, sample_weight: Any = None) -> Any:
        return summed_number(y_true, y_pred) * 2.0


@case
def a_loss_that_reduces_by_itself(block: Block) -> Figures:
    with block:
        return counted(compiled(net(), loss=OwnLoss(), optimizer=keras.optimizers.SGD(0.005, 0.9)))


@case
def weights_of_classes(block: Block) -> Figures:
    with block:
        model = compiled(net(), metrics=["accuracy"])
        figures = fitted(model, class_weight={0: 1.0, 1: 3.0, 2: 0.5, 3: 2.0})
        return {**figures, "iterations": int(model.optimizer.iterations)}


@case
def several_outputs_weighed(block: Block) -> Figures:
    """A summed loss beside a mean, weighed."""
    x, y = arrays()
    keras.utils.set_random_seed(3)
    with block:
        inputs = keras.Input((8,))
        trunk = layers.Dense(6, "tanh")(inputs)
        outputs = {
            "label": layers.Dense(4, name="label")(trunk),
            "size": layers.Dense(1, name="size")(trunk),
        }
        model = keras.Model(inputs, outputs)
        model.compile(
            keras.optimizers.Adam(0.01),
            loss={"label": loss(reduction="sum"), "size": "mse"},
            loss_weights={"label": 0.05, "size": 2.0},
            metrics={"label": "accuracy"},
        )
        target = {"label": y, "size": x.sum(axis=1, keepdims=True)}
        figures = fitted(model, x, target)
        return {**figures, "iterations": int(model.optimizer.iterations)}


class Summing(layers.Layer):
    """A layer that adds a sum over its samples to the loss."""

    def call(self, x: Any) -> Any:
        self.add_loss(0.001 * ops.sum(ops.square(x)))
        return x


class Averaging(layers.Layer):
    def call(self, x: Any) -> Any:
        self.add_loss(0.1 * ops.mean(ops.square(x)))
        return x


@case
def a_layer_adds_a_mean(block: Block) -> Figures:
    with block:
        return counted(compiled(net(Averaging())))


@case
def a_layer_adds_a_mean_before_a_batch_norm(block: Block) -> Figures:
    """At which replicas of one process take turns, in the middle of their calls."""
    with block:
        keras.utils.set_random_seed(3)
        inner = layers.Dense(6), Averaging(), layers.BatchNormalization(), Averaging()
        return counted(compiled(net(*inner)))


@case
def a_layer_adds_a_sum(block: Block) -> Figures:
    with block:
        keras.utils.set_random_seed(3)  # a layer's initializer draws its seed as it is made
        return counted(compiled(net(layers.Dense(6), Summing())))


class SummingInTraining(layers.Layer):
    def call(self, x: Any, training: bool = False) -> Any:
        if training:
            self.add_loss(0.001 * ops.sum(ops.square(x)))
        return x


@case
def a_layer_adds_a_sum_in_training(block: Block) -> Figures:
    """Beside draws, which trying it in training must not move on."""
    with block:
        keras.utils.set_random_seed(3)
        inner = layers.Dense(6), layers.Dropout(0.3), SummingInTraining()
        return fitted(compiled(net(*inner)))


@case
def a_layer_adds_a_mean_behind_recurrent_dropout(block: Block) -> Figures:
    """A recurrent layer draws its dropout out of training too, where it is tried."""
    with block:
        keras.utils.set_random_seed(3)
        inputs = keras.Input((8,))
        words = layers.GRU(6, dropout=0.3)(layers.Reshape((4, 2))(inputs))
        model = compiled(keras.Model(inputs, Averaging()(layers.Dense(4)(words))))
        return counted(model)


class Annealed(layers.Layer):
    """A layer that adds a sum by a weight that is 0 at first."""

    def build(self, shape: Any) -> None:
        self.by = self.add_weight(shape=(), initializer="zeros", trainable=False)

    def call(self, x: Any) -> Any:
        self.add_loss(self.by * ops.sum(ops.square(x)))
        return x


@case
def labels_of_one_output_of_two(block: Block) -> Figures:
    """53 in batches of 16: of the last batch a rank has two rows, as many as there are outputs."""
    with block:
        keras.utils.set_random_seed(3)
        inputs = keras.Input((8,))
        inner = layers.Dense(16, activation="tanh")(inputs)
        model = keras.Model(inputs, [layers.Dense(4)(inner), inner])
        return counted(compiled(model, loss=[loss(), None]), *arrays(53))


@case
def a_layer_adds_a_sum_later(block: Block) -> Figures:
    with block:
        keras.utils.set_random_seed(3)  # a layer's initializer draws its seed as it is made
        layer = Annealed()
        model = compiled(net(layers.Dense(6), layer))
        raised = keras.callbacks.LambdaCallback(
            on_epoch_begin=lambda epoch, _: layer.by.assign(0.001 * epoch)
        )
        return fitted(model, callbacks=[raised])


class OwnComputation(keras.Model):
    """A model that overrides compute_loss."""

    def compute_loss(
        self, x: Any = None, y: Any = None, y_pred: Any = None, sample_weight: Any = None,
        training: bool = True,
    ) -> Any:  # fmt: skip
        return ops.sum(keras.losses.sparse_categorical_crossentropy(y, y_pred, True))


@case
def a_model_that_computes_a_summed_loss(block: Block) -> Figures:
    keras.utils.set_random_seed(3)
    with block:
        inputs = keras.Input((8,))
        model = OwnComputation(inputs, layers.Dense(4)(inputs))
        model.compile(keras.optimizers.SGD(0.005, 0.9))
        return counted(model)
