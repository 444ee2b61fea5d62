"""Loops whose hooks change gradients, each of which must end with the weights of one device."""

from __future__ import annotations

import copy
import io
import logging
import traceback
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import dream

Loop = Callable[[], torch.Tensor]
CLASSES, FEATURES = 5, 6


def loader() -> DataLoader[Any]:
    draw = torch.Generator().manual_seed(3)
    labels = torch.randint(-1, CLASSES, (27,), generator=draw)
    return DataLoader(TensorDataset(torch.randn(27, FEATURES, generator=draw), labels), 8)


def net() -> nn.Sequential:
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(FEATURES, 12), nn.Tanh(), nn.Linear(12, CLASSES))


def weights(model: nn.Module) -> torch.Tensor:
    whole = (getattr(p, "full_tensor", p.detach)() for p in model.parameters())
    return torch.cat([p.detach().reshape(-1) for p in whole])


def train(model: nn.Module, every: int = 1) -> torch.Tensor:
    """By a mean over labels that are there, whose number differs over the ranks."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.3, momentum=0.9)
    optimizer.zero_grad()
    for _ in range(2):
        for step, (x, y) in enumerate(loader()):
            F.cross_entropy(model(x), y, ignore_index=-1).backward()
            if step % every == every - 1:
                optimizer.step()
                optimizer.zero_grad()
    return weights(model)


def clamped() -> torch.Tensor:
    model = net()
    for p in model.parameters():
        p.register_hook(lambda gradient: gradient.clamp(-0.01, 0.01))
    return train(model)


def clamped_where_passes_add_up() -> torch.Tensor:
    model = net()
    for p in model.parameters():
        p.register_hook(lambda gradient: gradient.clamp(-0.01, 0.01))
    return train(model, every=3)


def brought_to_a_length_with_noise() -> torch.Tensor:
    """Hooks one after another, one of which is taken off again."""
    model = net()
    for p in model.parameters():
        p.register_hook(lambda gradient: gradient / (gradient.norm() + 0.1))
        p.register_hook(lambda gradient: gradient + 0.01 * torch.randn_like(gradient))
        p.register_hook(torch.zeros_like).remove()
    return train(model)


def stepped_as_gradients_come() -> torch.Tensor:
    model = net()
    steps = {p: torch.optim.SGD([p], lr=0.1, momentum=0.9) for p in model.parameters()}

    def step(p: torch.Tensor) -> None:
        steps[p].step()  # type: ignore[index]
        steps[p].zero_grad()  # type: ignore[index]

    for p in model.parameters():
        p.register_post_accumulate_grad_hook(step)
    for x, y in loader():
        F.cross_entropy(model(x), y, ignore_index=-1).backward()
    return weights(model)


def halved_in_place(gradient: torch.Tensor) -> None:
    """What it is given is to be changed, though it returns nothing."""
    gradient.mul_(0.5)


class Held(nn.Module):
    """Its activations' gradients are held within bounds."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(FEATURES, 12), nn.Linear(12, CLASSES)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden = torch.tanh(self.first(x))
        if hidden.requires_grad:
            hidden.register_hook(lambda gradient: gradient.clamp(-0.002, 0.002))
            hidden.register_hook(halved_in_place)
        found: torch.Tensor = self.last(hidden)
        return found


def clamped_activations() -> torch.Tensor:
    torch.manual_seed(1)
    model = Held()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.3)
    for x, _ in loader():
        optimizer.zero_grad()
        model(x).square().mean().backward()
        optimizer.step()
    return weights(model)


class Clip(torch.autograd.Function):
    """The same, whose gradient is held within bounds."""

    @staticmethod
    def forward(_: Any, x: torch.Tensor) -> torch.Tensor:
        return x.view_as(x)

    @staticmethod
    def backward(_: Any, gradient: torch.Tensor) -> torch.Tensor:  # type: ignore[override]
        return gradient.clamp(-0.002, 0.002)


class Again(torch.autograd.Function):
    """A layer that is computed anew in backward, and whose gradient is held within bounds."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, layer: nn.Module) -> torch.Tensor:
        ctx.save_for_backward(x)
        ctx.layer = layer
        with torch.no_grad():
            found: torch.Tensor = layer(x)
        return found

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> Any:  # type: ignore[override]
        x = ctx.saved_tensors[0].detach().requires_grad_()
        with torch.enable_grad():
            made = ctx.layer(x)
        torch.autograd.backward(made, gradient)
        return x.grad, None


clip = Clip.apply  # bound before any block


class OfFunctions(nn.Module):
    """Layers with functions of their own between them."""

    def __init__(self, again: bool) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(FEATURES, 12), nn.Linear(12, CLASSES)
        self.middle, self.again = nn.Linear(12, 12), again

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden = clip(torch.tanh(self.first(x)))
        middle = Again.apply(hidden, self.middle) if self.again else self.middle(hidden)
        found: torch.Tensor = self.last(clip(torch.tanh(middle)))
        return found


def _by_squares(model: nn.Module, given: torch.optim.SGD | None = None) -> torch.Tensor:
    optimizer = given or torch.optim.SGD(model.parameters(), lr=0.3)
    for x, _ in loader():
        optimizer.zero_grad()
        model(x).square().mean().backward()
        optimizer.step()
    return weights(model)


def functions_with_bounds() -> torch.Tensor:
    torch.manual_seed(1)
    return _by_squares(OfFunctions(again=False))


def functions_that_compute_again() -> torch.Tensor:
    torch.manual_seed(1)
    return _by_squares(OfFunctions(again=True))


def functions_that_come_late() -> torch.Tensor:
    """Used from the tenth pass on, as after a warm-up."""
    torch.manual_seed(1)
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.3)
    passes = 0
    for _ in range(2):
        for x, _ in loader():
            passes += 1
            optimizer.zero_grad()
            hidden = model[1](model[0](x))
            model[2](clip(hidden) if passes > 9 else hidden).square().mean().backward()
            optimizer.step()
    return weights(model)


def bounded(_: nn.Module, given: Any, __: Any = None) -> Any:
    return tuple(None if g is None else g.clamp(-0.002, 0.002) for g in given)


def modules_with_bounds() -> torch.Tensor:
    """Full hooks of modules, before and after."""
    return _by_squares(_bounded_net())


def _bounded_net() -> nn.Module:
    model = net()
    model[1].register_full_backward_hook(bounded)
    model[2].register_full_backward_pre_hook(bounded)
    return model


def copies_of_modules_with_bounds() -> torch.Tensor:
    model = _bounded_net()
    copied = copy.deepcopy(model)
    found = _by_squares(copied)
    torch.save(model, io.BytesIO())
    return found


def all_modules_with_bounds() -> torch.Tensor:
    """By a hook of every module there is."""
    seen: list[Any] = []
    model = net()
    multi = torch.autograd.graph.register_multi_grad_hook([*model.parameters()], seen.append)
    handle = nn.modules.module.register_module_full_backward_hook(bounded)
    try:
        return _by_squares(model)
    finally:
        handle.remove()
        multi.remove()


def modules_with_bounds_before() -> Loop:
    model = _bounded_net()
    return lambda: _by_squares(model)


def clamped_before() -> Loop:
    """One hook is taken off again, when the model trains already."""
    model = net()
    for p in model.parameters():
        p.register_hook(lambda gradient: gradient.clamp(-0.01, 0.01))
        p.register_hook(lambda gradient: gradient / (gradient.norm() + 0.1))
    handle = model[0].weight.register_hook(torch.sign)

    def loop() -> torch.Tensor:
        train(model)
        handle.remove()
        return train(model)

    return loop


def clamped_before_and_prepared() -> Loop:
    """With an optimizer, as strategies take them that divide a model."""
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.3)
    for p in model.parameters():
        p.register_hook(lambda gradient: gradient.clamp(-0.01, 0.01))
    model[1].register_full_backward_hook(bounded)

    def loop() -> torch.Tensor:
        dream.current().prepare(model, optimizer)
        return _by_squares(model, optimizer)

    return loop


def clamped_bare_before() -> Loop:
    """A tensor of no module, and no optimizer."""
    torch.manual_seed(1)
    bare = torch.randn(FEATURES, CLASSES, requires_grad=True)
    bare.register_hook(lambda gradient: gradient.clamp(-0.01, 0.01))

    def loop() -> torch.Tensor:
        for x, y in loader():
            F.cross_entropy(x @ bare, y, ignore_index=-1).backward()
            assert bare.grad is not None
            with torch.no_grad():
                bare.sub_(bare.grad)
            bare.grad = None
        return bare.detach()

    return loop


def stepped_before_as_gradients_come() -> Loop:
    model = net()
    steps = {p: torch.optim.SGD([p], lr=0.1, momentum=0.9) for p in model.parameters()}

    def step(p: torch.Tensor) -> None:
        steps[p].step()  # type: ignore[index]
        steps[p].zero_grad()  # type: ignore[index]

    for p in model.parameters():
        p.register_post_accumulate_grad_hook(step)

    def loop() -> torch.Tensor:
        for x, y in loader():
            F.cross_entropy(model(x), y, ignore_index=-1).backward()
        return weights(model)

    return loop


def nodes_with_bounds() -> torch.Tensor:
    """By hooks on the graph's own nodes, before they run and after."""

    def held(gradients: tuple[Any, ...], _: Any = None) -> tuple[Any, ...]:
        return tuple(None if g is None else g.clamp(-0.002, 0.002) for g in gradients)

    model = net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.3)
    for x, _ in loader():
        optimizer.zero_grad()
        hidden = torch.tanh(model[0](x))
        again = torch.tanh(hidden)
        assert hidden.grad_fn is not None
        assert again.grad_fn is not None
        hidden.grad_fn.register_prehook(held)
        again.grad_fn.register_hook(held)
        again.grad_fn.register_hook(lambda *_: (torch.zeros(()),)).remove()
        model[2](again).square().mean().backward()
        optimizer.step()
    return weights(model)


def node_of_a_parameter() -> torch.Tensor:
    """Looked at, which is said."""
    model = net()
    node = model[0].weight.view_as(model[0].weight).grad_fn.next_functions[0][0]
    node.register_prehook(lambda _: None)
    return train(model)


LOOPS: tuple[Callable[[], torch.Tensor], ...] = (
    clamped,
    clamped_where_passes_add_up,
    brought_to_a_length_with_noise,
    stepped_as_gradients_come,
    clamped_activations,
    functions_with_bounds,
    functions_that_compute_again,
    functions_that_come_late,
    modules_with_bounds,
    copies_of_modules_with_bounds,
    all_modules_with_bounds,
    nodes_with_bounds,
    node_of_a_parameter,
)
EARLIER: tuple[Callable[[], Loop], ...] = (
    modules_with_bounds_before,
    clamped_before,
    clamped_before_and_prepared,
    clamped_bare_before,
    stepped_before_as_gradients_come,
)
"""Which register hooks before the block. Each makes what is run in it."""
SHARDED: tuple[Callable[..., Any], ...] = (
    clamped,
    clamped_where_passes_add_up,
    brought_to_a_length_with_noise,
    clamped_activations,
    functions_with_bounds,
    modules_with_bounds,
    nodes_with_bounds,
    clamped_before_and_prepared,
)
"""Those that are run under `sharded` too, by the name of the loop and of the strategy."""


def cells() -> list[tuple[str, str, Callable[..., Any]]]:
    """Each loop, and where it is run."""
    replicas = [(loop.__name__, "mirrored", loop) for loop in (*LOOPS, *EARLIER)]
    return replicas + [(f"{loop.__name__}_sharded", "sharded", loop) for loop in SHARDED]


def run_all() -> tuple[dict[str, Any], list[str]]:
    """Every loop's weights, and what was said."""
    torch.set_num_threads(1)
    heard: list[str] = []
    handler = logging.Handler()
    handler.emit = lambda record: heard.append(record.getMessage())  # type: ignore[method-assign]
    logging.getLogger("dream").addHandler(handler)
    found: dict[str, Any] = {}
    for name, strategy, loop in cells():
        try:
            made = loop if loop in LOOPS else loop()
            with dream.strategy(strategy):
                found[name] = made().numpy()
        except Exception:
            found[name] = traceback.format_exc()
    try:
        with dream.strategy(accumulate=2):
            net()[0].weight.register_hook(torch.zeros_like)
        found["accumulate"] = "nothing was raised"
    except dream.Unsupported as error:
        found["accumulate"] = str(error)
    return found, heard
