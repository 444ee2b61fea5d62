"""A variational autoencoder of digits: a summed loss (reconstruction and divergence, as tutorials
add them up) and noise that is drawn inside the model, equal on any number of ranks.

python examples/vae.py                           one process
dream run -n 2 examples/vae.py                   the same figures
"""

import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

import dream


class VAE(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.encode = nn.Sequential(nn.Linear(64, 48), nn.ReLU())
        self.mean, self.log_variance = nn.Linear(48, 8), nn.Linear(48, 8)
        self.decode = nn.Sequential(nn.Linear(8, 48), nn.ReLU(), nn.Linear(48, 64))

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        hidden = self.encode(x)
        mean, log_variance = self.mean(hidden), self.log_variance(hidden)
        code = mean + torch.exp(log_variance / 2) * torch.randn_like(mean)
        return self.decode(code), mean, log_variance


def loss_of(x, made, mean, log_variance) -> torch.Tensor:
    """A sum over samples, not a mean: averaging the ranks' gradients would halve it on two."""
    reconstruction = F.binary_cross_entropy_with_logits(made, x, reduction="sum")
    divergence = -0.5 * torch.sum(1 + log_variance - mean.pow(2) - log_variance.exp())
    return reconstruction + divergence


torch.manual_seed(0)
images, _ = load_digits(return_X_y=True)
x = torch.tensor(images / 16, dtype=torch.float32)
train, test = x[:1437], x[1437:]

with dream.strategy("mirrored") as strategy:
    model = VAE()
    optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
    batches = DataLoader(TensorDataset(train), batch_size=64, shuffle=True)

    for epoch in range(5):
        model.train()
        total = 0.0
        for (x,) in batches:
            optimizer.zero_grad()
            loss = loss_of(x, *model(x))
            loss.backward()  # from here on `loss` is the sum over the global batch
            optimizer.step()
            total += loss.item()
        model.eval()
        with torch.no_grad():
            tested = loss_of(test, *model(test)).item() / len(test)
        if strategy.topology.rank == 0:
            print(f"epoch {epoch + 1}: loss of a sample {total / len(train):.4f}, "
                  f"test loss {tested:.4f}")  # fmt: skip
