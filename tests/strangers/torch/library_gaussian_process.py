"""An exact Gaussian process of `gpytorch`, fitted on all points at once."""

import gpytorch
import torch

torch.manual_seed(7)
x = torch.linspace(0, 1, 31)
y = torch.sin(x * 6.28) + 0.1 * torch.randn(31)


class Process(gpytorch.models.ExactGP):
    def __init__(self, x, y, likelihood):
        super().__init__(x, y, likelihood)
        self.mean_module = gpytorch.means.ConstantMean()
        self.covar_module = gpytorch.kernels.ScaleKernel(gpytorch.kernels.RBFKernel())

    def forward(self, x):
        return gpytorch.distributions.MultivariateNormal(self.mean_module(x), self.covar_module(x))


likelihood = gpytorch.likelihoods.GaussianLikelihood()
model = Process(x, y, likelihood)
optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
mll = gpytorch.mlls.ExactMarginalLogLikelihood(likelihood, model)
history = []
model.train()
likelihood.train()
for _ in range(12):
    optimizer.zero_grad()
    loss = -mll(model(x), y)
    loss.backward()
    optimizer.step()
    history.append(loss.item())
model.eval()
likelihood.eval()
with torch.no_grad(), gpytorch.settings.fast_pred_var():
    history.append(likelihood(model(torch.linspace(0, 1, 5))).mean.sum().item())
models = {"process": model, "likelihood": likelihood}
