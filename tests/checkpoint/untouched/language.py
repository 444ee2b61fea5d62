"""A language model: hidden units, clipping, total_loss, and a rate that falls with the loss of
validation."""

import math
import sys

import fate
import torch
from torch import nn
from torch.optim.lr_scheduler import ReduceLROnPlateau
from torch.utils.data import DataLoader, TensorDataset

import dream

torch.manual_seed(3)
words = torch.randint(0, 12, (80, 7))
train_data, valid_data = TensorDataset(words[:60]), TensorDataset(words[60:])


class RNNModel(nn.Module):
    def __init__(self):
        super().__init__()
        self.encoder = nn.Embedding(12, 8)
        self.rnn = nn.GRU(8, 8, batch_first=True)
        self.decoder = nn.Linear(8, 12)

    def forward(self, x):
        output, _ = self.rnn(self.encoder(x))
        return self.decoder(output)


def evaluate(model, loader, criterion):
    model.eval()
    total_loss = 0.0
    with torch.no_grad():
        for (batch,) in loader:
            output = model(batch[:, :-1])
            total_loss += (
                len(batch) * criterion(output.flatten(0, 1), batch[:, 1:].flatten()).item()
            )
    return total_loss / len(loader.dataset)


def train(model, loader, criterion, optimizer, epoch, log_interval=3):
    model.train()
    total_loss = 0.0
    for batch, (data,) in enumerate(loader):
        optimizer.zero_grad()
        output = model(data[:, :-1])
        loss = criterion(output.flatten(0, 1), data[:, 1:].flatten())
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 0.25)
        optimizer.step()
        total_loss += loss.item()
        if batch % log_interval == 0 and batch > 0:
            cur_loss = total_loss / log_interval
            print(f"| epoch {epoch} | {batch}/{len(loader)} | ppl {math.exp(cur_loss):.2f}")
            total_loss = 0.0


with dream.strategy(sys.argv[1]):
    train_loader = DataLoader(train_data, batch_size=10, shuffle=True)
    valid_loader = DataLoader(valid_data, batch_size=10)
    model = RNNModel()
    criterion = nn.CrossEntropyLoss()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.05)
    scheduler = ReduceLROnPlateau(optimizer, factor=0.25, patience=0)
    best_val_loss = None
    for epoch in range(1, 7):
        train(model, train_loader, criterion, optimizer, epoch)
        val_loss = evaluate(model, valid_loader, criterion)
        print(f"| end of epoch {epoch} | valid ppl {math.exp(val_loss):.2f}")
        if not best_val_loss or val_loss < best_val_loss:
            best_val_loss = val_loss
        scheduler.step(val_loss)
    fate.tell(model, best=best_val_loss, lr=optimizer.param_groups[0]["lr"])
