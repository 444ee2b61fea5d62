"""A classifier of `skorch`, which has scikit-learn's interface and a loop of its own."""

import numpy as np
import torch
from skorch import NeuralNetClassifier
from skorch.callbacks import EarlyStopping, EpochScoring, GradientNormClipping, LRScheduler
from torch import nn

torch.manual_seed(5)
np.random.seed(5)
x = np.random.randn(61, 8).astype(np.float32)
y = (x[:, 0] + x[:, 1] > 0).astype(np.int64)


class Net(nn.Module):
    def __init__(self, width=12):
        super().__init__()
        self.layers = nn.Sequential(
            nn.Linear(8, width), nn.ReLU(), nn.Dropout(0.1), nn.Linear(width, 2)
        )

    def forward(self, x):
        return self.layers(x)


net = NeuralNetClassifier(
    Net, criterion=nn.CrossEntropyLoss, optimizer=torch.optim.SGD, optimizer__momentum=0.9,
    lr=0.1, batch_size=8, max_epochs=6, iterator_train__shuffle=True, verbose=0,
    callbacks=[
        EarlyStopping(patience=4), GradientNormClipping(1.0),
        LRScheduler("StepLR", step_size=2, gamma=0.5),
        EpochScoring("accuracy", name="train_acc", on_train=True, lower_is_better=False),
    ],
)  # fmt: skip
net.fit(x, y)
history = [
    row[name]
    for row in net.history
    for name in ("train_loss", "valid_loss", "valid_acc", "train_acc")
]
history.append(float((net.predict(x) == y).mean()))
models = {"trained": net.module_}
