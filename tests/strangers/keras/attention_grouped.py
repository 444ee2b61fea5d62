"""A causal decoder: grouped queries, rotary positions, gated units, a tied head, a masked mean."""

import keras
import numpy as np
from keras import layers, ops

keras.utils.set_random_seed(345)

tokens = np.random.randint(1, 16, (38, 9))
tokens[np.random.rand(38, 9) < 0.1] = 0


class Rotary(layers.Layer):
    def call(self, x):
        n, d = x.shape[1], x.shape[2]
        angle = ops.arange(n, dtype="float32")[:, None] / 10.0 ** (
            ops.arange(d // 2, dtype="float32")[None] / d
        )
        a, b = ops.split(x, 2, axis=-1)
        return ops.concatenate(
            [a * ops.cos(angle) - b * ops.sin(angle), a * ops.sin(angle) + b * ops.cos(angle)],
            axis=-1,
        )

    def compute_mask(self, inputs, mask=None):
        return mask


class Decoder(keras.Model):
    def __init__(self):
        super().__init__()
        self.embed = layers.Embedding(16, 8, mask_zero=True)
        self.rotary, self.norm, self.end = (
            Rotary(),
            layers.RMSNormalization(),
            layers.RMSNormalization(),
        )
        self.attend = layers.GroupQueryAttention(4, 4, 2, dropout=0.1)
        self.up, self.gate, self.down = layers.Dense(12), layers.Dense(12, "silu"), layers.Dense(8)

    def call(self, t, training=False):
        h = self.embed(t)
        mask = ops.not_equal(t, 0)
        n = self.rotary(self.norm(h))
        h = h + self.attend(
            n, n, attention_mask=mask[:, None, :], use_causal_mask=True, training=training
        )
        n = self.end(h)
        h = h + self.down(self.up(n) * self.gate(n))
        return ops.matmul(h, ops.transpose(self.embed.embeddings))


def loss(y, logits):
    each = keras.losses.sparse_categorical_crossentropy(y, logits, from_logits=True)
    seen = ops.cast(ops.not_equal(y, 0), "float32")
    return ops.sum(each * seen) / ops.sum(seen)


model = Decoder()
model.compile(keras.optimizers.SGD(0.1), loss)
history = model.fit(tokens[:, :-1], tokens[:, 1:], batch_size=10, epochs=2, verbose=0).history[
    "loss"
]
