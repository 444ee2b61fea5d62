"""Forward passes of models on devices of one process, beside themselves without dream."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass
from functools import cache
from types import SimpleNamespace
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F

import dream

Figures = dict[str, Any]
Loss = Callable[[nn.Module, torch.Tensor], torch.Tensor]


@dataclass
class Answer:
    logits: torch.Tensor
    hidden: torch.Tensor


class _Reversed(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, scale: float) -> torch.Tensor:
        ctx.scale = scale
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, given: torch.Tensor) -> tuple[torch.Tensor, None]:  # type: ignore[override]
        return -ctx.scale * given, None


class _Body(nn.Module):
    """Two layers, on a device each."""

    def __init__(self) -> None:
        super().__init__()
        self.into, self.out = nn.Linear(6, 12), nn.Linear(12, 3)

    def hidden(self, x: torch.Tensor) -> torch.Tensor:
        return torch.tanh(self.into(x))

    def forward(self, x: torch.Tensor) -> Any:
        return self.out(self.hidden(x))


class Reversing(_Body):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden = self.hidden(x)
        return self.out(hidden) + self.out(_Reversed.apply(hidden, 0.5)).sin()


class Answering(_Body):
    def forward(self, x: torch.Tensor) -> Answer:
        hidden = self.hidden(x)
        return Answer(self.out(hidden), hidden)


class Growing(_Body):
    def __init__(self) -> None:
        super().__init__()
        self.more = nn.ModuleList()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden = self.hidden(x)
        for layer in self.more:
            hidden = hidden + torch.tanh(layer(hidden))
        return self.out(hidden)


class _Layer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner, self.calls, self.kept = nn.Linear(12, 12), 0, None

    def forward(self, x: torch.Tensor) -> Any:
        self.calls += 1
        return self.inner(x) * (1 + 0.1 * self.calls)


class Counting(_Body):
    """A layer counts its calls, and is called once in each."""

    def __init__(self, layer: Callable[[], nn.Module] = _Layer) -> None:
        super().__init__()
        self.layer = layer()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.out(self.layer(self.hidden(x)))


class _Keeping(_Layer):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        made = self.inner(x)
        self.kept = made.square().mean()
        return made


class _Wrapping(_Layer):
    def forward(self, x: torch.Tensor) -> SimpleNamespace:
        return SimpleNamespace(made=self.inner(x))


class Unwrapping(Counting):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.out(self.layer(self.hidden(x)).made)


class _Taking(nn.Linear):
    def forward(self, x: Any) -> torch.Tensor:
        return super().forward(x.made)


class Passing(Counting):
    """A layer gives another, on another device, an object."""

    def __init__(self) -> None:
        super().__init__(_Wrapping)
        self.out = _Taking(12, 40)  # the most parameters: it has a device for itself

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.out(self.layer(self.hidden(x)))


CALLS = {"made": 0}


class Noting(_Body):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        CALLS["made"] += 1
        return self.out(self.hidden(x)) * CALLS["made"]


class Setting(_Body):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.last = self.hidden(x)
        return self.out(self.last)


class Halting(_Body):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden = self.hidden(x)
        with torch.no_grad():
            hidden = hidden + self.into(x)
        return self.out(hidden)


def plainly(model: nn.Module, x: torch.Tensor) -> torch.Tensor:
    return F.cross_entropy(model(x), torch.arange(len(x)) % 3)


def answered(model: nn.Module, x: torch.Tensor) -> torch.Tensor:
    answer = model(x)
    return answer.logits.square().mean() + answer.hidden.mean()


def grown(model: Any, x: torch.Tensor) -> torch.Tensor:
    loss = plainly(model, x)
    if not model.more:
        torch.manual_seed(3)
        model.more.append(nn.Linear(12, 12))
    return loss + plainly(model, x)


def hooked(model: Any, x: torch.Tensor) -> torch.Tensor:
    seen: list[torch.Tensor] = []
    handle = model.into.register_forward_hook(lambda *given: seen.append(given[-1]))
    loss = plainly(model, x)
    handle.remove()
    return loss + seen[0].square().mean()


def sloped(model: nn.Module, x: torch.Tensor) -> torch.Tensor:
    x = x.clone().requires_grad_()
    (slope,) = torch.autograd.grad(model(x).sum(), x, create_graph=True)
    return slope.square().mean()


EQUAL: dict[str, tuple[Callable[[], nn.Module], Loss]] = {
    "a backward of its own": (Reversing, plainly),
    "a dataclass": (Answering, answered),
    "a layer more": (Growing, grown),
    "a layer that counts": (Counting, plainly),
    "a layer's object": (lambda: Unwrapping(_Wrapping), plainly),
}
REFUSED: dict[str, tuple[Callable[[], nn.Module], Loss, str]] = {
    "a global": (Noting, plainly, "writes to CALLS"),
    "an attribute": (Setting, plainly, "sets last"),
    "no_grad": (Halting, plainly, "torch.no_grad"),
    "a hook": (_Body, hooked, "hook that sees its output"),
    "kept by a layer": (lambda: Counting(_Keeping), plainly, "leaves in kept"),
    "an object": (Passing, plainly, "SimpleNamespace"),
    "a slope": (_Body, sloped, "create_graph=True"),
}


def trained(make: Callable[[], nn.Module], loss_of: Loss, *, devices: bool) -> list[torch.Tensor]:
    """The parameters after three steps."""
    torch.manual_seed(0)
    model = make()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    way: Any = (
        dream.strategy("model_parallel", split="layers", devices=2) if devices else nullcontext()
    )
    with way as strategy:
        if devices:
            model, optimizer = strategy.prepare(model, optimizer)
        for _ in range(3):
            optimizer.zero_grad()
            loss_of(model, torch.randn(8, 6)).backward()
            optimizer.step()
    return [parameter.detach().clone() for parameter in model.parameters()]


def compared() -> Figures:
    torch.set_num_threads(1)
    found: Figures = {}
    for what, (make, loss_of) in EQUAL.items():
        ours, plain = (trained(make, loss_of, devices=each) for each in (True, False))
        pairs = zip(ours, plain, strict=True)
        found[what] = max(float((a - b).abs().max()) for a, b in pairs)
    for what, (make, loss_of, _) in REFUSED.items():
        try:
            trained(make, loss_of, devices=True)
        except dream.DreamError as error:
            found[what] = f"{type(error).__name__}: {error}"
    return found


@cache
def found() -> Figures:
    (figures,) = dream.launch(compared, n=1, framework="torch", timeout=300)
    return dict(figures)
