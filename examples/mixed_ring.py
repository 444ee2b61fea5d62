"""One model, two frameworks, one ring: some ranks train it in PyTorch, the others in TensorFlow.

dream run -n 2 --framework torch,tensorflow examples/mixed_ring.py
dream run -n 3 --framework torch,tensorflow --all-output examples/mixed_ring.py
python examples/mixed_ring.py                    PyTorch alone, the same result

Every rank adds its gradients to the others' in Keras's layout; rank 0's weights are every rank's
now and then, since the frameworks' arithmetic differs in the last bit.
"""

import os

import numpy as np
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split

import dream

FRAMEWORK = os.environ.get("DREAM_FRAMEWORK", "torch")  # what --framework dealt to this rank
EPOCHS, BATCH = 20, 64

images, labels = load_digits(return_X_y=True)
x, x_test, y, y_test = train_test_split(images.astype("float32") / 16, labels, random_state=0)


def in_torch():
    import torch
    from torch import nn
    from torch.nn import functional as F
    from torch.utils.data import DataLoader, TensorDataset

    with dream.strategy("horovod", framework="torch") as strategy:
        model = nn.Sequential(nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        train = TensorDataset(torch.from_numpy(x), torch.from_numpy(y))
        batches = DataLoader(train, batch_size=BATCH, shuffle=True)
        for _ in range(EPOCHS):
            for inputs, targets in batches:
                optimizer.zero_grad()
                F.cross_entropy(model(inputs), targets).backward()
                optimizer.step()
        with torch.no_grad():
            said = model(torch.from_numpy(x_test)).numpy()
    weights = [p.detach().numpy() for p in model.parameters()]
    return strategy, said, [w.T for w in weights]  # Linear is (out, in), Dense is (in, out)


def in_tensorflow():
    import keras
    import tensorflow as tf

    with dream.strategy("horovod", framework="tensorflow") as strategy:
        model = keras.Sequential(
            [
                keras.Input((64,)),
                keras.layers.Dense(32, activation="relu"),
                keras.layers.Dense(10),
            ]
        )
        optimizer = keras.optimizers.SGD(0.1, momentum=0.9)
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        step = strategy.train_step(model, loss, optimizer)
        for epoch in range(EPOCHS):
            order = strategy.order(len(x), epoch)  # that of the torch ranks' shuffled loader
            data = tf.data.Dataset.from_tensor_slices((x[order], y[order])).batch(BATCH)
            for inputs, targets in strategy.prepare(data):
                step(inputs, targets)
        said = model(x_test).numpy()
    return strategy, said, model.get_weights()


strategy, said, weights = in_torch() if FRAMEWORK == "torch" else in_tensorflow()
rank = strategy.topology.rank
flat = np.concatenate([w.ravel() for w in weights])
everybody = strategy.communicator.all_gather(flat[None])  # shape (ranks, weights)
print(
    f"rank {rank} ({FRAMEWORK}): test accuracy {(said.argmax(1) == y_test).mean():.3f}, weights "
    f"at most {np.abs(everybody - flat).max():.0e} from the other ranks'"
)
