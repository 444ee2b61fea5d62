"""L-BFGS over batches of a loader, without a line search."""

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(28)
x = torch.randn(25, 4)
data = TensorDataset(x, (x @ torch.randn(4, 1) > 0).float())
model = nn.Linear(4, 1)
optimizer = torch.optim.LBFGS(model.parameters(), lr=0.1, max_iter=3, history_size=4)
criterion = nn.BCEWithLogitsLoss()
history = []
for _epoch in range(2):
    for inputs, targets in DataLoader(data, batch_size=10, shuffle=True):

        def closure(inputs=inputs, targets=targets):
            optimizer.zero_grad()
            loss = criterion(model(inputs), targets)
            loss.backward()
            return loss

        history.append(float(optimizer.step(closure)))
