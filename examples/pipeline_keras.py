"""A small transformer in Keras as a pipeline: each device holds some of the blocks, and
microbatches follow one another through them.

python examples/pipeline_keras.py                two logical devices of one process
dream run -n 2 --strategy model_parallel:split=pipeline,devices=1 examples/pipeline_keras.py
                                                 two ranks, the same result

The text is made up: brackets that open and close, and the question how many are open at the end.
"""

import keras
import numpy as np
from keras import layers

import dream

LENGTH, WORDS, WIDTH = 16, 4, 32

draw = np.random.default_rng(0)
x = draw.integers(1, WORDS, size=(2048, LENGTH))  # 1 opens, 2 closes, 3 is anything else
y = np.clip((x == 1).sum(1) - (x == 2).sum(1), -3, 3) + 3


def block(hidden: keras.KerasTensor, name: str) -> keras.KerasTensor:
    seen = layers.LayerNormalization(name=f"{name}_begins")(hidden)
    hidden = hidden + layers.MultiHeadAttention(4, WIDTH // 4)(seen, seen)
    seen = layers.LayerNormalization()(hidden)
    seen = layers.Dense(4 * WIDTH, activation="gelu")(seen)
    return hidden + layers.Dense(WIDTH)(seen)


# stages=["block1_begins"] says where the second stage begins; "hybrid" with data=2 makes two rows
with dream.strategy("model_parallel", split="pipeline", devices=2, microbatches=4):
    keras.utils.set_random_seed(0)
    words = keras.Input((LENGTH,), dtype="int32")
    hidden = layers.Embedding(WORDS, WIDTH)(words)
    for index in range(2):
        hidden = block(hidden, f"block{index}")
    model = keras.Model(words, layers.Dense(7)(layers.GlobalAveragePooling1D()(hidden)))
    model.compile(
        optimizer=keras.optimizers.AdamW(3e-3),
        loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        metrics=["accuracy"],
    )
    model.fit(x[:1536], y[:1536], batch_size=64, epochs=6, verbose=2)
    loss, accuracy = model.evaluate(x[1536:], y[1536:], batch_size=64, verbose=0)

print(f"test accuracy {accuracy:.3f}")
