"""The epoch's loss is summed by the size of each batch and divided by that of the data set."""

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(40)
data = TensorDataset(torch.randn(44, 5), torch.randint(0, 3, (44,)))
loader = DataLoader(data, batch_size=8, shuffle=True)
model = nn.Sequential(nn.Linear(5, 8), nn.ReLU(), nn.Linear(8, 3))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
criterion, history = nn.CrossEntropyLoss(), []
for _epoch in range(3):
    running, right = 0.0, 0
    for inputs, labels in loader:
        optimizer.zero_grad()
        outputs = model(inputs)
        loss = criterion(outputs, labels)
        loss.backward()
        optimizer.step()
        running += loss.item() * inputs.size(0)
        right += torch.sum(outputs.argmax(1) == labels).item()
    history += [running / len(data), right / len(data)]
