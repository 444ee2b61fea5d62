"""Non-negative risk of positive and unlabelled samples: its branch hangs on the batch."""

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(36)
x = torch.randn(64, 5)
y = torch.where(torch.rand(64) < 0.4, 1.0, -1.0)
loader = DataLoader(TensorDataset(x + y.unsqueeze(1) * 0.3, y), batch_size=12, shuffle=True)
model = nn.Sequential(nn.Linear(5, 16), nn.ReLU(), nn.Linear(16, 1))
opt = torch.optim.SGD(model.parameters(), lr=0.1)
prior, history = 0.4, []
for _epoch in range(4):
    for xb, yb in loader:
        out = model(xb).view(-1)
        positive, unlabelled = (yb == 1).float(), (yb == -1).float()
        n_p, n_u = max(1.0, positive.sum().item()), max(1.0, unlabelled.sum().item())
        y_pos, y_unl = torch.sigmoid(-out), torch.sigmoid(out)
        pos_risk = torch.sum(prior * positive / n_p * y_pos)
        neg_risk = torch.sum((unlabelled / n_u - prior * positive / n_p) * y_unl)
        loss = pos_risk + neg_risk
        if neg_risk.item() < 0:
            loss = pos_risk
        opt.zero_grad()
        loss.backward()
        opt.step()
        history.append(loss.item())
