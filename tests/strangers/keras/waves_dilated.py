"""Series: dilated causal convolutions, a ConvLSTM, a cell of one's own and stacked states."""

import keras
import numpy as np
from keras import layers, ops

keras.utils.set_random_seed(346)

x = np.random.randn(38, 8, 3).astype("float32")
y = np.random.randn(38, 2).astype("float32")


class Cell(layers.Layer):
    def __init__(self, units, **kwargs):
        super().__init__(**kwargs)
        self.units = self.state_size = self.output_size = units
        self.a, self.b = layers.Dense(units), layers.Dense(units, use_bias=False)

    def build(self, shape):
        self.a.build(shape)
        self.b.build((shape[0], self.units))

    def call(self, inputs, states):
        h = ops.tanh(self.a(inputs) + self.b(states[0]))
        return h, [h]


seen = keras.Input((8, 3))
h = seen
for rate in (1, 2, 4):
    g = layers.Conv1D(6, 2, dilation_rate=rate, padding="causal", activation="tanh")(h)
    s = layers.Conv1D(6, 2, dilation_rate=rate, padding="causal", activation="sigmoid")(h)
    h = layers.Conv1D(3, 1)(layers.Multiply()([g, s])) + h
one, state = layers.RNN(Cell(4), return_state=True)(h)
two = layers.RNN([layers.LSTMCell(3), layers.GRUCell(4)])(seen)
three = layers.ConvLSTM1D(2, 2)(layers.Reshape((4, 2, 3))(seen))
end = layers.Concatenate()(
    [one, two, layers.Flatten()(three), layers.SimpleRNN(4)(seen, initial_state=state)]
)
model = keras.Model(seen, layers.Dense(2)(end))
model.compile(keras.optimizers.RMSprop(0.005), "mse")
history = model.fit(x, y, batch_size=11, epochs=2, verbose=0).history["loss"]
