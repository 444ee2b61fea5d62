"""A model for each loss of the library's that a regression or a classification may have."""

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(126)
x = torch.randn(41, 6)
data = TensorDataset(x, torch.randint(0, 3, (41,)), torch.rand(41, 3), torch.randn(41, 3).sign())
criteria = {
    "poisson": lambda out, y, z, s: nn.PoissonNLLLoss()(out, z * 3),
    "gaussian": lambda out, y, z, s: nn.GaussianNLLLoss()(out, z, out.detach().square() + 0.1),
    "positive": lambda out, y, z, s: nn.BCEWithLogitsLoss(
        weight=torch.tensor([1.0, 2.0, 0.5]), pos_weight=torch.tensor([3.0, 1.0, 2.0])
    )(out, (z > 0.5).float()),
    "soft_margin": lambda out, y, z, s: nn.SoftMarginLoss()(out, s),
    "hinge": lambda out, y, z, s: nn.HingeEmbeddingLoss(margin=0.5)(out, s),
    "multi": lambda out, y, z, s: nn.MultiLabelSoftMarginLoss()(out, (z > 0.5).float()),
    "cosine": lambda out, y, z, s: nn.CosineEmbeddingLoss(margin=0.1)(out, z, s[:, 0]),
    "ranking": lambda out, y, z, s: nn.MarginRankingLoss(0.2)(out[:, 0], out[:, 1], s[:, 0]),
    "weighted": lambda out, y, z, s: nn.CrossEntropyLoss(
        weight=torch.tensor([1.0, 2.0, 0.5]), label_smoothing=0.1
    )(out, y),
    "summed": lambda out, y, z, s: nn.NLLLoss(reduction="sum")(out.log_softmax(1), y) / len(y),
    "soft": lambda out, y, z, s: nn.CrossEntropyLoss()(out, z / z.sum(1, keepdim=True)),
    "log_cosh": lambda out, y, z, s: torch.log(torch.cosh(out - z)).mean(dim=1).mean(),
    "norm": lambda out, y, z, s: (out - z).norm(dim=1).mean(),
}
models = {name: nn.Linear(6, 3) for name in criteria}
optimizers = {n: torch.optim.SGD(m.parameters(), lr=0.1) for n, m in models.items()}
history = []
for xb, y, z, s in DataLoader(data, batch_size=9, shuffle=True):
    for name, criterion in criteria.items():
        optimizers[name].zero_grad()
        loss = criterion(models[name](xb), y, z, s)
        loss.backward()
        optimizers[name].step()
        history.append(loss.item())
