"""Deep Q-learning with a target network and a replay memory: predict on batches, train_on_batch."""

import keras
import numpy as np
from keras import layers

keras.utils.set_random_seed(314)

rng = np.random.default_rng(3)


def net():
    return keras.Sequential([keras.Input((4,)), layers.Dense(12, "relu"), layers.Dense(2)])


model, target = net(), net()
target.set_weights(model.get_weights())
model.compile(keras.optimizers.SGD(0.05), keras.losses.Huber())
memory, history = [], []
state = rng.normal(size=4).astype("float32")
for step in range(60):
    q = model.predict_on_batch(state[None])[0]
    action = int(rng.integers(2)) if rng.random() < 0.3 else int(np.argmax(q))
    after = (0.9 * state + rng.normal(size=4) * 0.3 + (action - 0.5)).astype("float32")
    memory.append((state, action, -float(np.abs(after[0])), after, step % 10 == 9))
    state = rng.normal(size=4).astype("float32") if step % 10 == 9 else after
    if len(memory) >= 13 and step % 3 == 0:
        rows = [memory[i] for i in rng.choice(len(memory), 13, replace=False)]
        s, a, r, n, d = (np.array(c) for c in zip(*rows, strict=True))
        goal = model.predict(s, verbose=0)
        goal[np.arange(13), a] = (
            r + 0.9 * (1 - d) * np.asarray(target(n)).max(1)
            if keras.backend.backend() == "tensorflow"
            else r + 0.9 * (1 - d) * target.predict(n, verbose=0).max(1)
        )
        history.append(float(model.train_on_batch(s, goal.astype("float32"))))
    if step % 15 == 14:
        target.set_weights(model.get_weights())
models = {"model": model, "target": target}
