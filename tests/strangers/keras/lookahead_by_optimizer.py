"""An optimizer whose slow weights begin as the model's: `build` assigns them."""

import keras
import numpy as np
from keras import layers, ops

keras.utils.set_random_seed(104)

x = np.random.randn(62, 6).astype("float32")
y = np.tanh(x @ np.random.randn(6, 1)).astype("float32")


class Lookahead(keras.optimizers.Optimizer):
    def __init__(self, learning_rate, every=3):
        super().__init__(learning_rate=learning_rate, name="lookahead")
        self.every = every

    def build(self, variables):
        if self.built:
            return
        super().build(variables)
        self.slow = [self.add_variable_from_reference(v, "slow") for v in variables]
        for slow, variable in zip(self.slow, variables):
            slow.assign(variable)

    def update_step(self, gradient, variable, learning_rate):
        slow = self.slow[self._get_variable_index(variable)]
        fast = variable - ops.cast(learning_rate, variable.dtype) * gradient
        meets = ops.equal((self.iterations + 1) % self.every, 0)
        self.assign(slow, ops.where(meets, slow + 0.5 * (fast - slow), slow))
        self.assign(variable, ops.where(meets, slow, fast))


model = keras.Sequential([keras.Input((6,)), layers.Dense(9, "relu"), layers.Dense(1)])
model.compile(Lookahead(0.1), "huber")
history = model.fit(x, y, batch_size=14, epochs=3, verbose=0).history["loss"]
