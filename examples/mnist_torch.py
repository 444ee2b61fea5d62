"""MNIST in PyTorch as the tutorials have it, CNN, arguments and all: the block is what is added.

python examples/mnist_torch.py --epochs 3 --lr 0.003 --save cnn.pt        one process
dream run -n 2 examples/mnist_torch.py --epochs 3                       the same figures

The images are scikit-learn's digits, drawn larger; --data FOLDER takes MNIST's own files.
"""

import argparse

import torch
from mnist_data import handwriting
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

import dream

parser = argparse.ArgumentParser()
parser.add_argument("--lr", type=float, default=0.003)
parser.add_argument("--epochs", type=int, default=3)
parser.add_argument("--batch-size", type=int, default=64, help="the global one")
parser.add_argument("--save", metavar="FILE", help="where the weights go")
parser.add_argument("--data", metavar="FOLDER", help="MNIST's own four files")
args = parser.parse_args()


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv1, self.conv2 = nn.Conv2d(1, 8, 3), nn.Conv2d(8, 16, 3)
        self.dropout = nn.Dropout(0.25)
        self.hidden, self.out = nn.Linear(16 * 5 * 5, 64), nn.Linear(64, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = F.max_pool2d(F.relu(self.conv1(x)), 2)
        x = F.max_pool2d(F.relu(self.conv2(x)), 2)
        x = F.relu(self.hidden(self.dropout(x.flatten(1))))
        return self.out(x)


def dataset(images, labels):
    return TensorDataset(torch.from_numpy(images)[:, None], torch.from_numpy(labels))


torch.manual_seed(0)
train, test = (dataset(*part) for part in handwriting(args.data))

with dream.strategy("mirrored"):
    model = Net()
    optimizer = torch.optim.Adam(model.parameters(), lr=args.lr)
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, step_size=1, gamma=0.7)
    batches = DataLoader(train, batch_size=args.batch_size, shuffle=True)

    for epoch in range(args.epochs):
        model.train()
        for x, y in batches:
            optimizer.zero_grad()
            loss = F.cross_entropy(model(x), y)
            loss.backward()
            optimizer.step()
        schedule.step()

        model.eval()  # from here on every rank sees every sample
        total, right = 0.0, 0
        with torch.no_grad():
            for x, y in DataLoader(test, batch_size=256):
                out = model(x)
                total += F.cross_entropy(out, y, reduction="sum").item()
                right += int((out.argmax(1) == y).sum())
        print(
            f"epoch {epoch + 1}: last batch's loss {loss.item():.4f}, "
            f"test loss {total / len(test):.4f}, test accuracy {right / len(test):.4f}"
        )

    if args.save:
        torch.save(model.state_dict(), args.save)  # rank 0 writes
