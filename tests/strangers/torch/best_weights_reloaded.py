"""Early stopping by the validation loss; the best state is loaded again at the end."""

import copy

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset, random_split

torch.manual_seed(106)
x = torch.randn(70, 6)
whole = TensorDataset(x, (x[:, 0] * x[:, 1] > 0).long())
train, valid = random_split(whole, [0.7, 0.3])
train_loader = DataLoader(train, batch_size=9, shuffle=True)
valid_loader = DataLoader(valid, batch_size=9)
model = nn.Sequential(nn.Linear(6, 24), nn.BatchNorm1d(24), nn.ReLU(), nn.Linear(24, 2))
optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
criterion = nn.CrossEntropyLoss()
best, best_state, waited, history = float("inf"), None, 0, []
for _epoch in range(12):
    model.train()
    for xb, yb in train_loader:
        optimizer.zero_grad()
        loss = criterion(model(xb), yb)
        loss.backward()
        optimizer.step()
    model.eval()
    total, right, seen = 0.0, 0, 0
    with torch.no_grad():
        for xb, yb in valid_loader:
            out = model(xb)
            total += criterion(out, yb).item() * xb.size(0)
            right += (out.argmax(1) == yb).sum().item()
            seen += xb.size(0)
    history += [total / seen, right / len(valid)]
    if total / seen < best - 1e-4:
        best, best_state, waited = total / seen, copy.deepcopy(model.state_dict()), 0
    else:
        waited += 1
        if waited == 2:
            break
model.load_state_dict(best_state)
history.append(len(history))
