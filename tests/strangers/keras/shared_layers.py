"""Two questions through one embedding and one LSTM; the output is tied to the embedding."""

import keras
import numpy as np
from keras import layers, ops

keras.utils.set_random_seed(58)


class Tied(layers.Layer):
    def __init__(self, embedding):
        super().__init__()
        self.embedding = embedding

    def call(self, h):
        return ops.matmul(h, ops.transpose(self.embedding.embeddings))


a, b = np.random.randint(0, 25, (2, 79, 5))
answer = np.where(a[:, 0] > b[:, 0], a[:, 0], b[:, 0])
embed, encode = layers.Embedding(25, 6), layers.GRU(6)
left, right = keras.Input((5,), dtype="int32"), keras.Input((5,), dtype="int32")
both = layers.Add()([encode(embed(left)), encode(embed(right))])
model = keras.Model([left, right], Tied(embed)(layers.Dense(6, "tanh")(both)))
model.compile(
    keras.optimizers.SGD(0.5),
    keras.losses.SparseCategoricalCrossentropy(from_logits=True),
    metrics=["accuracy"],
)
log = model.fit([a, b], answer, batch_size=18, epochs=3, verbose=0)

history = [*log.history["loss"], *log.history["accuracy"]]
