"""A trainer class that draws with replacement and counts iterations; the model returns its loss."""

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, Dataset, RandomSampler

torch.manual_seed(3407)


class Sorting(Dataset):
    """Three digits, then the same sorted; the loss counts the second half only."""

    def __len__(self):
        return 10000

    def __getitem__(self, index):
        digits = torch.tensor([index % 4, index // 4 % 4, index // 16 % 4])
        both = torch.cat([digits, digits.sort().values])
        x, y = both[:-1].clone(), both[1:].clone()
        y[:2] = -1
        return x, y


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed, self.rnn = nn.Embedding(4, 8), nn.GRU(8, 16, batch_first=True)
        self.head = nn.Linear(16, 4)

    def forward(self, x, y=None):
        logits = self.head(self.rnn(self.embed(x))[0])
        loss = None
        if y is not None:
            loss = F.cross_entropy(logits.view(-1, 4), y.view(-1), ignore_index=-1)
        return logits, loss


class Trainer:
    def __init__(self, model, dataset, iterations):
        self.model, self.iterations, self.losses = model, iterations, []
        sampler = RandomSampler(dataset, replacement=True, num_samples=int(1e10))
        self.loader = DataLoader(dataset, sampler=sampler, shuffle=False, batch_size=10)
        self.optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)

    def run(self):
        batches = iter(self.loader)
        for _ in range(self.iterations):
            try:
                x, y = next(batches)
            except StopIteration:
                batches = iter(self.loader)
                x, y = next(batches)
            _, loss = self.model(x, y)
            self.model.zero_grad(set_to_none=True)
            loss.backward()
            self.optimizer.step()
            self.losses.append(loss.item())


trainer = Trainer(Model(), Sorting(), 20)
trainer.run()
model, history = trainer.model, trainer.losses
