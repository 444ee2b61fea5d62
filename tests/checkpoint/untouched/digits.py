"""PyTorch's example of MNIST, as it stands, on little data."""

import argparse

import fate
import torch
import torch.nn.functional as F
from torch import nn, optim
from torch.optim.lr_scheduler import StepLR
from torch.utils.data import DataLoader, TensorDataset

import dream


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc1 = nn.Linear(8, 16)
        self.dropout = nn.Dropout(0.3)
        self.fc2 = nn.Linear(16, 3)

    def forward(self, x):
        x = F.relu(self.fc1(x))
        x = self.dropout(x)
        return F.log_softmax(self.fc2(x), dim=1)


def train(args, model, device, train_loader, optimizer, epoch):
    model.train()
    for batch_idx, (data, target) in enumerate(train_loader):
        data, target = data.to(device), target.to(device)
        optimizer.zero_grad()
        output = model(data)
        loss = F.nll_loss(output, target)
        loss.backward()
        optimizer.step()
        if batch_idx % args.log_interval == 0:
            print(
                f"Train Epoch: {epoch} [{batch_idx}/{len(train_loader)}]\tLoss: {loss.item():.6f}"
            )


def test(model, device, test_loader):
    model.eval()
    test_loss = 0
    correct = 0
    with torch.no_grad():
        for data, target in test_loader:
            data, target = data.to(device), target.to(device)
            output = model(data)
            test_loss += F.nll_loss(output, target, reduction="sum").item()
            pred = output.argmax(dim=1, keepdim=True)
            correct += pred.eq(target.view_as(pred)).sum().item()
    test_loss /= len(test_loader.dataset)
    print(f"Test set: Average loss: {test_loss:.4f}, Accuracy: {correct}")
    return test_loss


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("word")
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--log-interval", type=int, default=2)
    parser.add_argument("--save-model", default="")
    args = parser.parse_args()
    torch.manual_seed(1)
    device = torch.device("cpu")
    x, y = torch.randn(61, 8), torch.randint(0, 3, (61,))
    with dream.strategy(args.word):
        train_loader = DataLoader(TensorDataset(x, y), batch_size=8, shuffle=True)
        test_loader = DataLoader(TensorDataset(x[:30], y[:30]), batch_size=10)
        model = Net().to(device)
        optimizer = optim.Adadelta(model.parameters(), lr=1.0)
        scheduler = StepLR(optimizer, step_size=1, gamma=0.7)
        for epoch in range(1, args.epochs + 1):
            train(args, model, device, train_loader, optimizer, epoch)
            loss = test(model, device, test_loader)
            scheduler.step()
            if args.save_model:
                torch.save(model.state_dict(), f"{args.save_model}.{epoch}")
        fate.tell(model, loss=loss)


if __name__ == "__main__":
    main()
