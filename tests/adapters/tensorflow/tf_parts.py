"""Fits where each rank reads files of its own."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import keras
import numpy as np
import tensorflow as tf

import dream

FOLDER = "DREAM_TEST_PARTS"
BATCH, WIDTH, EPOCHS, RANKS = 8, 4, 3, 3
LENGTHS = (9, 2, 5, 11, 3, 4, 6)
"""Samples of each file."""


def write(folder: Path) -> None:
    """Write files of uneven lengths: a sample is its number."""
    samples = iter(range(sum(LENGTHS)))
    for index, length in enumerate(LENGTHS):
        lines = [f"{next(samples)}\n" for _ in range(length)]
        (folder / f"{index}.txt").write_text("".join(lines))


def names() -> list[str]:
    return sorted(map(str, Path(os.environ[FOLDER]).glob("*.txt")))


def parsed(line: Any) -> Any:
    number = tf.strings.to_number(line, tf.float32)
    return tf.sin(number * tf.range(1.0, WIDTH + 1)), tf.cast(number % 2.0, tf.int32)


def dataset() -> tf.data.Dataset:
    """In the order of the files."""
    lines = tf.data.Dataset.from_tensor_slices(names()).flat_map(tf.data.TextLineDataset)
    return lines.map(parsed).batch(BATCH).prefetch(1)


def model() -> Any:
    keras.utils.set_random_seed(0)
    made = keras.Sequential(
        [
            keras.Input((WIDTH,)),
            keras.layers.Dense(8, activation="tanh"),
            keras.layers.BatchNormalization(),
            keras.layers.Dropout(0.25, seed=1),
            keras.layers.Dense(2),
        ]
    )
    made.compile(
        keras.optimizers.SGD(0.1, momentum=0.9),
        keras.losses.SparseCategoricalCrossentropy(from_logits=True), metrics=["accuracy"],
    )  # fmt: skip
    return made


def as_one_device() -> dict[str, Any]:
    """Train on the global batches that so many ranks make of their files."""
    own: list[list[Any]] = [[] for _ in range(RANKS)]
    for index, name in enumerate(names()):
        own[index % RANKS] += [*tf.data.TextLineDataset(name).map(parsed).as_numpy_iterator()]
    batches = []
    while any(own):
        batch = []
        for rank, rows in enumerate(own):
            size = BATCH // RANKS + (rank < BATCH % RANKS)
            batch += rows[:size]
            del rows[:size]
        batches.append(tuple(map(np.stack, zip(*batch, strict=True))))
    whole = tf.data.Dataset.from_generator(lambda: batches, output_signature=dataset().element_spec)
    # Where Keras finds the end by a step without a batch, that step draws dropout's seeds.
    whole = whole.apply(tf.data.experimental.assert_cardinality(len(batches)))
    made = model()
    history = made.fit(whole, epochs=EPOCHS, verbose=0)
    return {"weights": made.get_weights(), "loss": history.history["loss"]}


def in_parts() -> dict[str, Any]:
    with dream.strategy("mirrored", framework="tensorflow", input="sharded"):
        made = model()
        history = made.fit(dataset(), epochs=EPOCHS, validation_data=dataset(), verbose=0)
        weights = made.get_weights()
        more = made.fit(np.ones((5, WIDTH)), np.ones(5), batch_size=5, verbose=0)  # as ever
    assert len(more.history["loss"]) == 1
    return {"weights": weights, "loss": history.history["loss"], "val": history.history["val_loss"]}


def counted(shuffle: bool) -> list[int]:
    """How often each sample came, where files and samples are shuffled without a seed."""
    count = sum(LENGTHS)
    with dream.strategy("mirrored", framework="tensorflow", input="sharded"):
        made = keras.Sequential(
            [
                keras.Input((count,)),
                keras.layers.Dense(1, use_bias=False, kernel_initializer="zeros"),
            ]
        )
        made.compile(keras.optimizers.SGD(1.0), lambda _, y: keras.ops.sum(y))
        files = tf.data.Dataset.list_files(f"{os.environ[FOLDER]}/*.txt", shuffle=shuffle)
        lines = files.interleave(tf.data.TextLineDataset, cycle_length=2)
        numbers = lines.map(lambda line: tf.strings.to_number(line, tf.int32))
        if shuffle:
            numbers = numbers.shuffle(7)
        rows = numbers.map(lambda n: (tf.one_hot(n, count), 0.0)).batch(BATCH)
        made.fit(rows, epochs=2, verbose=0)
    return [round(-float(w)) for w in made.get_weights()[0][:, 0]]


def _made(kind: str) -> Any:
    whole, lines = dataset(), tf.data.TextLineDataset(names()).map(parsed)
    if kind == "take":
        return lines.take(10).batch(BATCH)
    if kind == "drop":
        return lines.batch(BATCH, drop_remainder=True)
    if kind == "memory":
        return tf.data.Dataset.from_tensor_slices((np.ones((9, WIDTH)), np.ones(9))).batch(BATCH)
    if kind == "few":
        return tf.data.TextLineDataset(names()[:2]).map(parsed).batch(BATCH)
    if kind == "other":
        order = names() if os.environ["RANK"] == "0" else names()[::-1]
        return tf.data.TextLineDataset(order).map(parsed).batch(BATCH)
    if kind == "generator":
        return (pair for pair in [(np.ones((2, WIDTH)), np.ones(2))])
    return whole


REFUSED = {
    "take": "with Take", "drop": "drop_remainder", "memory": "no file names", "few": "2 file names",
    "other": "read other files", "generator": "which a batch is the global one",
    "steps": "steps_per_epoch=2", "loop": "in fit alone",
}  # fmt: skip


def refused() -> dict[str, str]:
    """What is said of each."""
    found = {}
    with dream.strategy("mirrored", framework="tensorflow", input="sharded") as strategy:
        for kind in REFUSED:
            try:
                if kind == "loop":
                    strategy.prepare(dataset())
                else:
                    steps = 2 if kind == "steps" else None
                    model().fit(_made(kind), steps_per_epoch=steps, verbose=0)
                found[kind] = "nothing"
            except dream.DreamError as error:
                found[kind] = str(error)
    return found


def everything(shuffled: Sequence[bool]) -> dict[str, Any]:
    """On every rank. shuffled: whether samples are, as they are counted."""
    found: dict[str, Any] = {
        "fitted": in_parts(),
        "counted": {shuffle: counted(shuffle) for shuffle in shuffled},
        "refused": refused(),
    }
    if os.environ["RANK"] == "0":  # plain Keras, after the blocks
        found["one device"] = as_one_device()
    return found
