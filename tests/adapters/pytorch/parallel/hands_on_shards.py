"""What loops do by hand to gradients and parameters, on one device and on shards."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch
from torch import nn
from torch.func import functional_call, grad, vmap
from torch.optim.swa_utils import AveragedModel
from torch.utils.data import DataLoader, TensorDataset

import dream

Acts = Iterator[Any]
"""Is gone on with before an optimizer, before and after each of its steps; gives a number."""


def norm_read(model: nn.Module) -> Acts:
    yield
    while True:
        norm = sum(float(p.grad.pow(2).sum()) for p in model.parameters()) ** 0.5
        for p in model.parameters():
            p.grad.mul_(1.0 / norm)
        yield norm
        yield


def norm_printed(model: nn.Module) -> Acts:
    yield
    while True:
        yield float(f"{sum(p.grad.norm() ** 2 for p in model.parameters()):.4f}")
        yield


def largest(model: nn.Module) -> Acts:
    yield
    while True:
        most = max(p.grad.abs().max().item() for p in model.parameters())
        for p in model.parameters():
            p.grad.div_(most)
        yield most
        yield


def noise_like(model: nn.Module) -> Acts:
    yield
    while True:
        for p in model.parameters():
            p.grad.add_(0.1 * torch.randn_like(p.grad))
        yield
        yield


def noise_of_a_size(model: nn.Module) -> Acts:
    yield
    while True:
        for p in model.parameters():
            p.grad.add_(0.1 * torch.randn(p.shape))
        yield
        yield


def drawn_anew(model: nn.Module) -> Acts:
    yield
    while True:
        yield
        nn.init.normal_(model[2].weight, 0.0, 0.1)
        model[0].reset_parameters()
        yield


def average_by_names(model: nn.Module) -> Acts:
    shadow = {name: p.detach().clone() for name, p in model.named_parameters()}
    yield
    while True:
        yield
        for name, p in model.named_parameters():
            shadow[name] = 0.9 * shadow[name] + 0.1 * p.data
        yield float(sum(value.sum() for value in shadow.values()))


def average_by_copy(model: nn.Module) -> Acts:
    shadow = copy.deepcopy(model)
    yield
    while True:
        yield
        with torch.no_grad():
            for mine, p in zip(shadow.parameters(), model.parameters(), strict=True):
                mine.lerp_(p, 0.1)
            told = float(shadow(torch.ones(1, 5)).sum())
            for mine, p in zip(shadow.parameters(), model.parameters(), strict=True):
                p.copy_(0.5 * (p + mine))
        yield told


def averaged_model(model: nn.Module) -> Acts:
    shadow = AveragedModel(model)
    yield
    while True:
        yield
        shadow.update_parameters(model)
        with torch.no_grad():
            told = float(shadow(torch.ones(1, 5)).sum())
        yield told


def taken(model: nn.Module) -> Acts:
    """The gradient of another loss beside that which backward has left."""
    yield
    while True:
        held = [*model.parameters()]
        loss = model(torch.linspace(-1, 1, 15).view(3, 5)).pow(2).mean()
        gradients = torch.autograd.grad(loss, iter(held), only_inputs=True)
        for p, gradient in zip(held, gradients, strict=True):
            p.grad.add_(gradient)
        yield loss.item()
        yield


def listed_before(model: nn.Module) -> Acts:
    """What was listed before there were shards stands for these, as an optimizer's list does: its
    gradients were none, and what was written to it was lost in silence."""
    held = [*model.parameters()]
    yield
    while True:
        flat = torch.cat([p.grad.flatten() for p in held])
        parts = (flat / flat.norm()).split([p.numel() for p in held])
        for p, part in zip(held, parts, strict=True):
            p.grad = part.view_as(p).clone()
        yield float(flat.norm())
        with torch.no_grad():
            for p in held:
                p.data.clamp_(-0.3, 0.3)
                p.add_(0.01 * torch.randn_like(p))
        yield float(nn.utils.parameters_to_vector(held).norm())


HANDS = (norm_read, norm_printed, largest, noise_like, noise_of_a_size, drawn_anew,
         average_by_names, average_by_copy, averaged_model, taken, listed_before)  # fmt: skip
OPTIMIZERS: dict[str, Callable[..., Any]] = {
    "adafactor": partial(torch.optim.Adafactor, lr=0.01),
    "lbfgs": partial(torch.optim.LBFGS, lr=0.1, max_iter=3),
}


def untouched(_: nn.Module) -> Acts:
    while True:
        yield


def trained(act: Callable[[nn.Module], Acts], make: Callable[..., Any] | None = None) -> list[Any]:
    torch.manual_seed(31)
    data = TensorDataset(torch.randn(28, 5), 3 * torch.randn(28, 2))
    model = nn.Sequential(nn.Linear(5, 9), nn.Sigmoid(), nn.Linear(9, 2))
    acting = act(model)
    next(acting)
    optimizer = (make or partial(torch.optim.SGD, lr=0.1, momentum=0.5))(model.parameters())
    found: list[Any] = []
    for x, y in DataLoader(data, batch_size=12, shuffle=True):

        def closure(x: Any = x, y: Any = y) -> Any:
            optimizer.zero_grad()
            loss = ((model(x) - y) ** 2).sum(dim=1).mean()
            loss.backward()
            return loss

        if make is None:
            found += [closure().item(), next(acting)]
            optimizer.step()
        else:
            found.append(float(optimizer.step(closure)))
        found.append(next(acting))
    wholes = [p.full_tensor() if hasattr(p, "full_tensor") else p for p in model.parameters()]
    return [torch.tensor([x or 0.0 for x in found]), *(p.detach() for p in wholes)]


def apart() -> dict[str, float]:
    """How far each is from one device, by its name; and what two ranks cannot agree on."""
    torch.set_num_threads(1)
    jobs: dict[str, Any] = {act.__name__: partial(trained, act) for act in HANDS}
    jobs |= {name: partial(trained, untouched, make) for name, make in OPTIMIZERS.items()}
    found = {}
    for name, job in jobs.items():
        right = job()
        with dream.strategy("sharded", framework="torch"):
            ours = job()
        found[name] = max(
            float(((a - b).abs() / b.abs().clamp(min=1.0)).max())
            for a, b in zip(ours, right, strict=True)
        )
    return found


def unlike() -> str:
    """A rank's own numbers are added to what is in shards."""
    with dream.strategy("sharded", framework="torch") as made:
        model = nn.Linear(3, 2)
        torch.optim.SGD(model.parameters(), lr=0.1)
        try:
            with torch.no_grad():
                model.weight.add_(torch.full((2, 3), float(made.topology.rank)))
        except dream.ConfigurationError as error:
            return str(error)
    return "nothing"


WRITES: dict[str, Callable[[torch.Tensor], Any]] = {
    "zero": lambda p: p[0].zero_(),
    "fill": lambda p: p.data[2:4].fill_(0.5),
    "scale": lambda p: p[-1].mul_(2.0),
    "copy": lambda p: p[1:3].copy_(torch.ones(2, 3)),
    "one": lambda p: p.__setitem__((3, 1), 1.0),
    "draw": lambda p: p[1:].normal_(),
    "flat": lambda p: p.view(-1)[7:].zero_(),
    "further": lambda p: p[1].detach().unsqueeze(0).abs_(),
}
"""To rows of a parameter, by hand: torch wrote to a copy of them, in silence."""


def written() -> dict[str, str]:
    """What each is told; and columns, which are a part of each shard, and a number that is read."""
    found = {}
    with dream.strategy("sharded", framework="torch"):
        model = nn.Linear(3, 4)
        torch.optim.SGD(model.parameters(), lr=0.1)
        for name, write in WRITES.items():
            try:
                with torch.no_grad():
                    write(model.weight)
                found[name] = "nothing"
            except dream.Unsupported as error:
                found[name] = str(error)
        with torch.no_grad():
            model.weight.fill_(1.0)[:, 0].zero_()
            model.weight.mul_(3.0)
        found["read"] = f"{model.weight.sum():.1f} {model.weight[3, 1].item():.1f}"
    return found


def by_functions() -> list[str]:
    """What is told of gradients that torch.func computes, of each sample's and of all."""
    found = []
    with dream.strategy("sharded", framework="torch"):
        model = nn.Sequential(nn.Linear(3, 2))
        torch.optim.SGD(model.parameters(), lr=0.1)

        def loss(own: dict[str, torch.Tensor], x: torch.Tensor) -> torch.Tensor:
            return functional_call(model, own, (x[None],)).square().sum()

        def mean(own: dict[str, torch.Tensor], x: torch.Tensor) -> torch.Tensor:
            return vmap(loss, in_dims=(None, 0))(own, x).mean()

        for run in (vmap(grad(loss), in_dims=(None, 0)), grad(mean)):
            try:
                run({name: p.detach() for name, p in model.named_parameters()}, torch.ones(4, 3))
                found.append("nothing")
            except dream.Unsupported as error:
                found.append(str(error))
    return found


class Scaled(nn.Module):
    """With a parameter of its own, which stays gathered whatever `zero` is."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.scale = nn.Linear(5, 9), nn.Linear(9, 2), nn.Parameter(torch.ones(9))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.b(self.a(x).tanh() * self.scale)
        return out


def _by_the_model(model: Scaled) -> None:
    model.zero_grad()


def _by_parts(model: Scaled) -> None:
    model.a.zero_grad(set_to_none=False)
    model.b.zero_grad()
    del model.scale.grad


def _one_by_one(model: Scaled) -> None:
    for p in model.parameters():
        p.grad = None


def _by_value(model: Scaled) -> None:
    for p in model.parameters():
        if p.grad is not None:
            p.grad.zero_()


def _by_zeros(model: Scaled) -> None:
    for p in model.parameters():
        p.grad = torch.zeros_like(p)


def _less(model: Scaled) -> None:
    """Some of the last step's, as a momentum by hand."""
    for p in model.parameters():
        if p.grad is not None:
            p.grad *= 0.5


CLEARS = (_by_the_model, _by_parts, _one_by_one, _by_value, _by_zeros, _less)


def cleared(clear: Callable[[Scaled], None]) -> list[float]:
    """Losses of a loop that clears gradients between a call of its model and its backward pass."""
    torch.manual_seed(3)
    x, y, model = torch.randn(8, 5), torch.randn(8, 2), Scaled()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    found = []
    for _ in range(4):
        loss = (model(x) - y).square().mean()
        clear(model)
        loss.backward()
        optimizer.step()
        found.append(loss.item())
    return found


def cleared_late() -> dict[str, float]:
    """How far each is from one device, whatever is sharded."""
    gaps = {}
    for clear in CLEARS:
        right = torch.tensor(cleared(clear))
        gaps[clear.__name__] = 0.0
        for zero in (2, 3):
            with dream.strategy("sharded", framework="torch", zero=zero):
                gap = (torch.tensor(cleared(clear)) - right).abs().max()
            gaps[clear.__name__] = max(gaps[clear.__name__], float(gap))
    return gaps


def pulled() -> list[torch.Tensor]:
    """Parameters of a loop whose loss pulls them to what they were after an epoch."""
    torch.manual_seed(3)
    model, loader = Scaled(), DataLoader(TensorDataset(torch.randn(9, 5), torch.randn(9, 2)), 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    held: dict[str, torch.Tensor] = {}
    for _ in range(2):
        for x, y in loader:
            loss = (model(x) - y).square().mean()
            for name, p in model.named_parameters():
                loss = loss + (0.1 * (p - held[name]).square().sum() if held else 0.0)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        held = {name: p.detach().clone() for name, p in model.named_parameters()}
    return [p.full_tensor() if hasattr(p, "full_tensor") else p for p in model.parameters()]


def pulled_apart() -> float:
    right = pulled()
    found = 0.0
    for zero in (2, 3):
        with dream.strategy("sharded", framework="torch", zero=zero):
            pairs = zip(pulled(), right, strict=True)
        found = max(found, *(float((a - b).detach().abs().max()) for a, b in pairs))
    return found


class Flow(nn.Module):
    """Fits its first batch by writing to parameters, and samples by a method."""

    def __init__(self) -> None:
        super().__init__()
        self.scale, self.shift = nn.Parameter(torch.rand(5)), nn.Parameter(torch.rand(5))
        self.fitted = True

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if not self.fitted:
            self.shift.data.copy_(-x.mean(0))
        return (x + self.shift) * self.scale.exp()

    def sample(self, z: torch.Tensor) -> torch.Tensor:
        return z * (-self.scale).exp() - self.shift


def sampled() -> dict[str, Any]:
    """Numbers of a model's method without gradients; and what it is told that writes there."""
    torch.manual_seed(0)
    plain, z = Flow(), torch.randn(7, 5)
    state = {name: value.clone() for name, value in plain.state_dict().items()}
    with dream.strategy("sharded", framework="torch"), torch.no_grad():
        model = Flow()
        model.load_state_dict(state)
        torch.optim.SGD(model.parameters(), lr=0.1)
        gap = float((model.sample(z) - plain.sample(z)).abs().max())
        lists = [p.tolist() == q.tolist() for p, q in zip(*map(_of, (model, plain)), strict=True)]
        arrays = [bool((p.detach().numpy() == q.detach().numpy()).all())
                  for p, q in zip(*map(_of, (model, plain)), strict=True)]  # fmt: skip
        model.fitted = False
        try:
            model(z)
            said = "nothing"
        except dream.Unsupported as error:
            said = str(error)
    return {"gap": gap, "alike": all(lists + arrays), "said": said}


def _of(model: nn.Module) -> list[nn.Parameter]:
    return [*model.parameters()]
