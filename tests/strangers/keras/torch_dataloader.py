"""fit on a torch DataLoader that shuffles and keeps the small last batch."""

import keras
import numpy as np
import torch
from keras import layers
from torch.utils.data import DataLoader, TensorDataset

keras.utils.set_random_seed(49)

x = torch.from_numpy(np.random.randn(69, 5).astype("float32"))
y = torch.from_numpy(np.random.randn(69, 1).astype("float32"))
train = DataLoader(TensorDataset(x, y), batch_size=16, shuffle=True)
test = DataLoader(TensorDataset(x, y), batch_size=20)
model = keras.Sequential(
    [keras.Input((5,)), layers.Dense(8, "relu"), layers.Dropout(0.2), layers.Dense(1)]
)
model.compile(keras.optimizers.SGD(0.1), "mse", metrics=["mae"])
log = model.fit(train, epochs=3, validation_data=test, verbose=0)

history = [value for name in sorted(log.history) for value in log.history[name]]
