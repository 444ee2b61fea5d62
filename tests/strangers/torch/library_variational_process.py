"""A sparse Gaussian process of `gpytorch`, fitted by batches."""

import gpytorch
import torch
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(8)
x = torch.rand(61, 1)
y = torch.sin(x[:, 0] * 6.28) + 0.1 * torch.randn(61)


class Process(gpytorch.models.ApproximateGP):
    def __init__(self, points):
        variational = gpytorch.variational.CholeskyVariationalDistribution(points.size(0))
        strategy = gpytorch.variational.VariationalStrategy(
            self, points, variational, learn_inducing_locations=True
        )
        super().__init__(strategy)
        self.mean_module = gpytorch.means.ConstantMean()
        self.covar_module = gpytorch.kernels.ScaleKernel(gpytorch.kernels.RBFKernel())

    def forward(self, x):
        return gpytorch.distributions.MultivariateNormal(self.mean_module(x), self.covar_module(x))


model = Process(x[:6].clone())
likelihood = gpytorch.likelihoods.GaussianLikelihood()
optimizer = torch.optim.Adam([*model.parameters(), *likelihood.parameters()], lr=0.05)
mll = gpytorch.mlls.VariationalELBO(likelihood, model, num_data=61)
history = []
for _ in range(3):
    for a, b in DataLoader(TensorDataset(x, y), batch_size=16, shuffle=True):
        optimizer.zero_grad()
        loss = -mll(model(a), b)
        loss.backward()
        optimizer.step()
        history.append(loss.item())
models = {"process": model, "likelihood": likelihood}
