"""A torch DataLoader with a collate of its own, dicts, random_split, and workers."""

import keras
import numpy as np
import torch
from keras import layers

keras.utils.set_random_seed(352)

rows = [(np.random.randn(np.random.randint(2, 7)).astype("float32"), i % 2) for i in range(47)]


class Rows(torch.utils.data.Dataset):
    def __len__(self):
        return len(rows)

    def __getitem__(self, i):
        return rows[i]


def collate(batch):
    x = torch.nn.utils.rnn.pad_sequence([torch.as_tensor(a) for a, _ in batch], batch_first=True)
    x = torch.nn.functional.pad(x, (0, 7 - x.shape[1]))
    return {"series": x}, torch.tensor([[float(b)] for _, b in batch])


train, val = torch.utils.data.random_split(
    Rows(), [35, 12], generator=torch.Generator().manual_seed(1)
)
a = torch.utils.data.DataLoader(train, batch_size=8, shuffle=True, collate_fn=collate)
b = torch.utils.data.DataLoader(val, batch_size=5, collate_fn=collate)
seen = keras.Input((7,), name="series")
model = keras.Model({"series": seen}, layers.Dense(1, "sigmoid")(layers.Dense(6, "relu")(seen)))
model.compile(keras.optimizers.SGD(0.3), "binary_crossentropy", metrics=["accuracy"])
log = model.fit(a, epochs=3, validation_data=b, verbose=0).history
history = [each for name in sorted(log) for each in log[name]]
