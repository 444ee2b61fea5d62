"""The Keras half of each pair of models. `port_torch` has the same names."""

import keras

L = keras.layers


def stack(*layers):
    keras.utils.set_random_seed(2)
    return keras.Sequential(list(layers))


def dense():
    return stack(keras.Input((6,)), L.Dense(8, activation=L.Activation("gelu")), L.Dense(3))


def square():
    return stack(keras.Input((6,)), L.Dense(6), L.Dense(6))


def conv1d():
    return stack(
        keras.Input((9, 3)), L.Conv1D(4, 3, strides=2, activation="relu"), L.Flatten(), L.Dense(2)
    )


def conv2d():
    return stack(
        keras.Input((11, 11, 3)),
        L.Conv2D(4, 3, padding="same", activation="relu"),
        L.Conv2D(6, 3, strides=2),
        L.Activation("tanh"),
        L.MaxPooling2D(),
        L.Flatten(),
        L.Dropout(0.5),
        L.Dense(5),
    )


def conv2d_same_stride():
    return stack(keras.Input((8, 8, 3)), L.Conv2D(4, 3, strides=2, padding="same", use_bias=False))


def conv_groups():
    return stack(
        keras.Input((9, 9, 4)),
        L.DepthwiseConv2D(3, depth_multiplier=2, dilation_rate=2, activation="relu"),
        L.Conv2D(6, 1, groups=2),
    )


def separable():
    return stack(
        keras.Input((9, 9, 3)),
        L.SeparableConv2D(4, 3, padding="same", depth_multiplier=2, activation="relu"),
        L.SeparableConv2D(5, 3, strides=2, use_bias=False),
        L.Flatten(),
        L.Dense(2),
    )


def conv3d():
    return stack(keras.Input((4, 5, 6, 2)), L.Conv3D(3, 2), L.GlobalAveragePooling3D())


def generator():
    return stack(
        keras.Input((5,)), L.Dense(18), L.BatchNormalization(epsilon=1e-5, momentum=0.9),
        L.ReLU(), L.Reshape((3, 3, 2)), L.Conv2DTranspose(3, 2, strides=2),
    )  # fmt: skip


def batch_norm():
    return stack(
        keras.Input((8, 8, 3)), L.Conv2D(4, 3), L.BatchNormalization(), L.ReLU(), L.Flatten(),
        L.BatchNormalization(), L.Dense(3),
    )  # fmt: skip


def norms():
    return stack(
        keras.Input((6,)), L.Dense(8), L.LayerNormalization(), L.Dense(8),
        L.RMSNormalization(epsilon=1e-6), L.GroupNormalization(2), L.PReLU(),
    )  # fmt: skip


def embedding():
    return stack(
        keras.Input((4,), dtype="int32"), L.Embedding(11, 6), L.GlobalAveragePooling1D(), L.Dense(2)
    )


def attention():
    x = given = keras.Input((7, 8))
    x = L.LayerNormalization()(x + L.MultiHeadAttention(2, 4)(x, x))
    return keras.Model(given, L.Dense(3)(x))


def encoder():
    x = given = keras.Input((7, 8))
    attended = L.MultiHeadAttention(2, 4, dropout=0.1)(x, x)
    x = L.LayerNormalization(epsilon=1e-5)(x + L.Dropout(0.1)(attended))
    wide = L.Dropout(0.1)(L.Dense(16, activation="gelu")(x))
    x = L.LayerNormalization(epsilon=1e-5)(x + L.Dropout(0.1)(L.Dense(8)(wide)))
    return keras.Model(given, L.Dense(3)(x[:, 0]))


def lstm():
    return stack(keras.Input((6, 5)), L.LSTM(4), L.Dense(2))


def time_first():
    given = keras.Input((6, 5))
    x = L.LSTM(4, return_sequences=True)(given)
    return keras.Model(given, L.Dense(2)(L.MultiHeadAttention(2, 2)(x, x)))


def gru():
    return stack(keras.Input((6, 5)), L.GRU(4), L.Dense(2))


def bidirectional():
    return stack(
        keras.Input((6, 5)),
        L.Bidirectional(L.LSTM(4, return_sequences=True)),
        L.Bidirectional(L.LSTM(4, return_sequences=True)),
        L.Dense(2),
    )


def inputs():
    first, second = keras.Input((3,)), keras.Input((5,))
    a, b = L.Dense(4)(first), L.Dense(4)(second)
    return keras.Model([first, second], [a + b, b])


def image():
    return stack(
        keras.Input((8, 8, 3)), L.Conv2D(4, 3, padding="same", activation="relu"), L.Conv2D(2, 1)
    )


class Start(L.Layer):
    def build(self, shape):
        self.start = self.add_weight(shape=shape[-1:], initializer="normal", name="start")

    def call(self, x):
        return x + self.start


def tokens():
    given = {
        "tokens": keras.Input((4,), dtype="int32", name="tokens"),
        "weights": keras.Input((4,), name="weights"),
    }
    mix = L.Dense(6, name="mix")
    x = Start()(L.Embedding(11, 6)(given["tokens"]))
    inner = keras.Input((4, 6))
    twice = keras.Model(inner, mix(keras.ops.relu(mix(inner))), name="twice")
    x = twice(x) * keras.ops.expand_dims(given["weights"], -1)
    return keras.Model(given, L.Dense(2)(L.GlobalAveragePooling1D()(x)))


def classes():
    return stack(keras.Input((6,)), L.Dense(4))


def conv1d_norm():
    return stack(keras.Input((9, 3)), L.BatchNormalization(), L.Conv1D(4, 3))


def gray():
    return stack(
        keras.Input((5, 6)), L.Reshape((5, 6, 1)), L.Conv2D(4, 3), L.Permute((3, 1, 2)),
        L.Flatten(), L.Dense(3),
    )  # fmt: skip


@keras.saving.register_keras_serializable()
class Block(L.Layer):
    """Layers in a layer of the user's."""

    def __init__(self):
        super().__init__()
        self.flat, self.norm, self.head = L.Flatten(), L.LayerNormalization(), L.Dense(2)

    def call(self, x):
        return self.head(self.norm(self.flat(x)))


def blocks():
    given = keras.Input((9, 3))
    x = L.Conv1D(4, 3)(given)
    return keras.Model(given, Block()(L.Maximum()([x, x])))


def joined():
    """A flattened map among other features."""
    given = keras.Input((8, 8, 3))
    x = L.Conv2D(4, 3)(given)
    x = L.Concatenate()([L.Flatten()(x), L.GlobalMaxPooling2D()(x)])
    return keras.Model(given, L.Dense(2)(x))


def joined_unseen():
    given = keras.Input((8, 8, 3))
    x = L.Conv2D(4, 3)(given)
    x = keras.ops.concatenate([L.GlobalMaxPooling2D()(x), L.Flatten()(x)], -1)
    return keras.Model(given, L.Dense(2)(x))


def flat_image():
    return stack(keras.Input((4, 5, 3)), L.Flatten(), L.Dense(4, activation="relu"), L.Dense(2))


@keras.saving.register_keras_serializable()
class Subclassed(keras.Model):
    """conv2d, written as a class, with operations that are no layers between."""

    def __init__(self):
        super().__init__()
        self.first = L.Conv2D(4, 3, padding="same")
        self.second = L.Conv2D(6, 3, strides=2)
        self.pool = L.MaxPooling2D()
        self.head = L.Dense(5)

    def call(self, x, training=False):
        x = keras.ops.relu(self.first(x))
        x = self.pool(keras.ops.tanh(self.second(x)))
        return self.head(keras.ops.reshape(x, (-1, 24)))


def subclassed():
    return Subclassed()


# what is wrong in them


def coarse():
    keras.config.set_dtype_policy("mixed_bfloat16")
    try:
        return dense()
    finally:
        keras.config.set_dtype_policy("float32")


def wrong_gates():
    """reset_after=False is another function."""
    return stack(keras.Input((6, 5)), L.GRU(4, reset_after=False), L.Dense(2))


def wrong_recurrent_activation():
    return stack(keras.Input((6, 5)), L.LSTM(4, recurrent_activation="hard_sigmoid"), L.Dense(2))


def flat_as_keras():
    return stack(keras.Input((4, 5, 3)), L.Conv2D(4, 3), L.Flatten(),
                 L.BatchNormalization(momentum=0.9), L.Dense(5))  # fmt: skip


def packed():
    return stack(keras.Input((4,)), L.Embedding(11, 4, mask_zero=True), L.LSTM(3), L.Dense(2))


def cropped():
    return stack(keras.Input((5, 6, 3)), L.Conv2DTranspose(4, 3, strides=2, padding="same"))


class Tied(keras.Model):
    def __init__(self):
        super().__init__()
        self.embedding = L.Embedding(11, 4)

    def call(self, tokens):
        x = self.embedding(tokens)
        return keras.ops.matmul(x, keras.ops.transpose(self.embedding.embeddings))


def tied():
    return Tied()


def heads():
    x = keras.Input((6,))
    return keras.Model(x, [L.Dense(1, name="score")(x), L.Dense(3, name="kind")(x)])


def steps():
    return stack(keras.Input((4, 6)), L.Dense(4), L.LayerNormalization(epsilon=1e-5), L.Dense(2))
