"""A loop of torch's around a Keras model that holds modules of torch's own."""

import keras
import torch
from keras import layers

keras.utils.set_random_seed(389)

x = torch.randn(75, 8)
y = (x[:, 0].sin() + x[:, 1] ** 2 > 1).long()
body = torch.nn.Sequential(
    torch.nn.Linear(8, 16), torch.nn.BatchNorm1d(16), torch.nn.ReLU(), torch.nn.Dropout(0.3)
)
model = keras.Sequential(
    [keras.Input((8,)), layers.TorchModuleWrapper(body, output_shape=(None, 16)), layers.Dense(2)]
)
optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
loader = torch.utils.data.DataLoader(
    torch.utils.data.TensorDataset(x, y), batch_size=16, shuffle=True
)
history = []
for _ in range(3):
    for xs, ys in loader:
        optimizer.zero_grad()
        loss = torch.nn.functional.cross_entropy(model(xs, training=True), ys)
        loss.backward()
        optimizer.step()
        history.append(loss.item())
history += body[1].running_mean.tolist()
