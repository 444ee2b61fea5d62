"""Loops that read numbers, some of which every rank has alike."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import torch
from torch import nn
from torch.nn import functional as F
from torch.nn.utils import get_total_norm
from torch.utils.data import DataLoader, TensorDataset

Scripts = dict[str, Callable[[], object]]
Read = Callable[[nn.Module, torch.Tensor], object]
DATA = TensorDataset(torch.linspace(-1, 1, 33).reshape(11, 3) ** 2, torch.arange(11.0) / 7)


def net() -> tuple[nn.Module, Iterable[tuple[torch.Tensor, torch.Tensor]]]:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 1))
    torch.optim.SGD(model.parameters())  # as of scripts that train: their first batch is in parts
    return model, DataLoader(DATA, 4)


def at_steps(read: Read) -> Callable[[], None]:
    def script() -> None:
        model, batches = net()
        optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)
        for x, y in batches:
            optimizer.zero_grad()
            loss = F.mse_loss(model(x)[:, 0], y)
            loss.backward()  # type: ignore[no-untyped-call]
            read(model, x)
            optimizer.step()
        read(model, x)

    return script


def of_model(read: Callable[[nn.Module], object]) -> Callable[[], None]:
    return at_steps(lambda model, _: read(model))


def gradients(model: nn.Module) -> list[torch.Tensor]:
    return [p.grad for p in model.parameters() if p.grad is not None]


def norms_by_hand(model: nn.Module) -> float:
    total = 0.0
    for p in model.parameters():
        if p.grad is not None:
            norm = p.grad.data.norm(2)
            total += norm.item() ** 2
    return total**0.5


def clipped(model: nn.Module) -> float:
    return nn.utils.clip_grad_norm_(model.parameters(), 0.01).item()


def penalised(model: nn.Module) -> float:
    return torch.stack([p.norm() for p in model.parameters()]).norm().item()


def squares(model: nn.Module) -> float:
    return torch.as_tensor(sum((p**2).sum() for p in model.parameters())).sqrt().item()


def flat(model: nn.Module) -> float:
    return torch.cat([p.view(-1) for p in model.parameters()]).abs().mean().item()


def counted(model: nn.Module) -> float:
    sums = [p.double().sum() for p in model.parameters()]
    return torch.as_tensor(sum(sums)).item()


def of_rows_and_parameters(model: nn.Module, x: torch.Tensor) -> float:
    return (next(model.parameters()).sum() + x.sum()).item()


def of_rows_times_parameters(model: nn.Module, x: torch.Tensor) -> float:
    return (next(model.parameters())[0] * x[0]).sum().item()


def chosen_parameters(model: nn.Module, x: torch.Tensor) -> float:
    return next(model.parameters())[0][(x[0] > x.mean()).long()].sum().item()


def last_loss_beside_a_size() -> None:
    model, batches = net()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    for epoch in range(2):
        for x, y in batches:
            optimizer.zero_grad()
            loss = F.mse_loss(model(x)[:, 0], y)
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
        right = 7 * 2
        print(f"{epoch}: {loss.item():.4f} {right / len(DATA)}", file=DEVNULL)


def weighed_in_micro_batches() -> None:
    model, batches = net()
    running = 0.0
    for x, y in batches:
        for _ in range(2):
            loss = F.mse_loss(model(x)[:, 0], y)
            loss.backward()  # type: ignore[no-untyped-call]
        running += loss.item() * len(x)


def kept_and_weighed(*, detached: bool) -> None:
    model, batches = net()
    for _ in range(2):
        losses, sizes = [], []
        for x, y in batches:
            loss = F.mse_loss(model(x)[:, 0], y)
            loss.backward()  # type: ignore[no-untyped-call]
            losses.append(loss.detach() if detached else loss)
            sizes.append(len(x))
        total = 0.0
        for each, size in zip(losses, sizes, strict=True):
            total += each.item() * size


def kept_and_averaged() -> None:
    model, batches = net()
    for _ in range(2):
        losses = []
        for x, y in batches:
            loss = F.mse_loss(model(x)[:, 0], y)
            loss.backward()  # type: ignore[no-untyped-call]
            losses.append(loss.detach())
        print(sum(map(float, losses)) / len(losses), file=DEVNULL)


Added = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]


def added_up(add: Added, *, by: str = "batches") -> Callable[[], None]:
    """add: what of a loss and its rows is added up. by: what the sum is then divided by."""

    def script() -> None:
        model, batches = net()
        for _ in range(2):
            running, many = torch.zeros(()), 0
            for x, y in batches:
                loss = F.mse_loss(model(x)[:, 0], y)
                loss.backward()  # type: ignore[no-untyped-call]
                running += add(loss, x)
                many += 1
            mean = running / (many if by == "batches" else len(DATA))
            print(mean.item(), file=DEVNULL)

    return script


def mean_so_far() -> None:
    model, batches = net()
    running = torch.zeros(())
    for at, (x, y) in enumerate(batches):
        loss = F.mse_loss(model(x)[:, 0], y)
        loss.backward()  # type: ignore[no-untyped-call]
        running = running + loss.detach()
        print((running / (at + 1)).item(), file=DEVNULL)


def without_modules(*, read: bool) -> None:
    weight = torch.zeros(3, requires_grad=True)
    optimizer = torch.optim.SGD([weight], 0.1)
    running: torch.Tensor | float = 0.0
    for x, y in DataLoader(DATA, 4):
        optimizer.zero_grad()
        loss = F.mse_loss(x @ weight, y)
        loss.backward()  # type: ignore[no-untyped-call]
        assert weight.grad is not None
        weight.grad.norm().item()
        optimizer.step()
        running = running + loss
    weight.sum().item()
    if read:
        torch.as_tensor(running).item()


class Nowhere:
    def write(self, text: str) -> int:
        return len(text)


DEVNULL = Nowhere()
QUIET: Scripts = {
    "draws for all rows": of_model(
        lambda _: (torch.randint(0, 3, (7,)).tolist(), torch.rand(1).item() * 2)
    ),
    "a gradient's norm": of_model(lambda m: gradients(m)[0].norm().item()),
    "norms by hand": of_model(norms_by_hand),
    "all their norms": of_model(lambda m: [g.norm().item() for g in gradients(m)]),
    "a gradient's mean": of_model(lambda m: gradients(m)[2].abs().mean().item()),
    "a gradient": of_model(lambda m: gradients(m)[0].tolist()),
    "a parameter, detached": of_model(lambda m: next(m.parameters()).detach().numpy()),
    "a parameter's element": of_model(lambda m: gradients(m)[0][0, 0].item()),
    "their total": of_model(lambda m: float(get_total_norm(gradients(m)))),
    "clipped": of_model(clipped),
    "a sum of parameters": of_model(counted),
    "that, detached": of_model(lambda m: next(m.parameters()).norm().detach().item()),
    "a norm of norms": of_model(penalised),
    "a root of squares": of_model(squares),
    "of all in one": of_model(flat),
    "the last loss beside a size": last_loss_beside_a_size,
    "without modules": lambda: without_modules(read=False),
    "detached and averaged": kept_and_averaged,
    "a sum of losses by batches": added_up(lambda loss, _: loss.detach()),
    "a mean so far": mean_so_far,
}
OWN: Scripts = {
    "rows and parameters": at_steps(of_rows_and_parameters),
    "rows times parameters": at_steps(of_rows_times_parameters),
    "parameters that rows choose": at_steps(chosen_parameters),
    "rows": at_steps(lambda _, x: x.mean().item()),
    "right answers": at_steps(lambda _, x: (x > 0).float().mean().item()),
    "outputs": at_steps(lambda m, x: m(x).mean().item()),
    "a gradient's norm, then rows": at_steps(
        lambda m, x: (gradients(m)[0].norm().item(), x.mean().item())
    ),
    "weighed in micro-batches": weighed_in_micro_batches,
    "kept and weighed": lambda: kept_and_weighed(detached=False),
    "a sum weighed by rows": added_up(lambda loss, x: loss.detach() * len(x), by="rows"),
    "a sum of rows by batches": added_up(lambda _, x: x.mean().detach()),
    "answers by batches": added_up(lambda _, x: (x > 0.2).float().mean()),
    "detached and weighed": lambda: kept_and_weighed(detached=True),
    "without modules, a sum of losses": lambda: without_modules(read=True),
}
