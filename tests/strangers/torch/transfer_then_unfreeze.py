"""Only a new head is trained; later the trunk's last layer too, at a rate of its own."""

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(26)
pretrained = nn.Sequential(nn.Linear(6, 12), nn.BatchNorm1d(12), nn.ReLU(), nn.Linear(12, 9))
state = {name: value.clone() for name, value in pretrained.state_dict().items()}
data = TensorDataset(torch.randn(45, 6), torch.randint(0, 3, (45,)))


class Classifier(nn.Module):
    def __init__(self):
        super().__init__()
        self.trunk = nn.Sequential(
            nn.Linear(6, 12), nn.BatchNorm1d(12), nn.ReLU(), nn.Linear(12, 9)
        )
        self.fc = nn.Linear(9, 3)

    def forward(self, x):
        return self.fc(self.trunk(x).relu())


model = Classifier()
model.trunk.load_state_dict(state)
for parameter in model.trunk.parameters():
    parameter.requires_grad = False
optimizer = torch.optim.SGD(model.fc.parameters(), lr=0.1, momentum=0.9)
loader = DataLoader(data, batch_size=8, shuffle=True)
history = []
for epoch in range(4):
    model.train()
    model.trunk[1].eval()
    if epoch == 2:
        for parameter in model.trunk[3].parameters():
            parameter.requires_grad = True
        optimizer.add_param_group({"params": model.trunk[3].parameters(), "lr": 0.01})
    for x, y in loader:
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        history.append(loss.item())
