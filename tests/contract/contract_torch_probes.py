"""Less usual ways to a gradient. Each must be right or refused; what must not be is a wrong
number without a word."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from contract_case import EVERYWHERE, Env, Figures
from contract_torch_kit import CASES, Net, loader, momentum, parameters, train
from torch import nn
from torch.nn import functional as F

import dream

Step = Callable[[Net, Any, torch.Tensor, torch.Tensor], None]


def _stepped(env: Env, step: Step) -> Figures:
    """Two epochs of a whole step by the user; or the refusal, with the parameters left out."""
    with env.block():
        model = Net()
        optimizer = momentum(model.parameters())
        try:
            for _ in range(2):
                for x, y in loader(61):
                    optimizer.zero_grad()
                    step(model, optimizer, x, y)
        except dream.DreamError as error:
            return {"refused": f"{type(error).__name__}: {error}"}
    return {"parameters": parameters(model)}


@CASES.add(*EVERYWHERE)
def gradients_asked_for_by_hand(env: Env) -> Figures:
    """torch.autograd.grad, whose results the user puts in place."""

    def step(model: Net, optimizer: Any, x: torch.Tensor, y: torch.Tensor) -> None:
        found = torch.autograd.grad(F.cross_entropy(model(x), y), list(model.parameters()))
        for parameter, gradient in zip(model.parameters(), found, strict=True):
            parameter.grad = gradient
        optimizer.step()

    return _stepped(env, step)


@CASES.add(*EVERYWHERE)
def forward_called_by_name(env: Env) -> Figures:
    def step(model: Net, optimizer: Any, x: torch.Tensor, y: torch.Tensor) -> None:
        F.cross_entropy(model.forward(x), y).backward()
        optimizer.step()

    return _stepped(env, step)


@CASES.add(*EVERYWHERE)
def parts_called_from_the_start(env: Env) -> Figures:
    """The whole is never called: its parts are chained modules."""

    def step(model: Net, optimizer: Any, x: torch.Tensor, y: torch.Tensor) -> None:
        F.cross_entropy(model.head(model.encoder(x)), y).backward()
        optimizer.step()

    return _stepped(env, step)


@CASES.add(*EVERYWHERE)
def a_part_beside_the_whole_in_one_backward(env: Env) -> Figures:
    def step(model: Net, optimizer: Any, x: torch.Tensor, y: torch.Tensor) -> None:
        (F.cross_entropy(model(x), y) + model.encoder(x * 0.5).square().mean()).backward()
        optimizer.step()

    return _stepped(env, step)


@CASES.add(*EVERYWHERE)
def a_part_after_the_whole_in_its_own_backward(env: Env) -> Figures:
    def step(model: Net, optimizer: Any, x: torch.Tensor, y: torch.Tensor) -> None:
        F.cross_entropy(model(x), y).backward()
        model.encoder(x * 0.5).square().mean().backward()
        optimizer.step()

    return _stepped(env, step)


@CASES.add(*EVERYWHERE)
def a_part_in_every_other_step(env: Env) -> Figures:
    """A step on the whole, then one on its encoder alone."""

    def step(model: Net, optimizer: Any, x: torch.Tensor, y: torch.Tensor) -> None:
        F.cross_entropy(model(x), y).backward()
        optimizer.step()
        optimizer.zero_grad()
        model.encoder(x).square().mean().backward()
        optimizer.step()

    return _stepped(env, step)


@CASES.add(*EVERYWHERE)
def gradient_of_a_gradient(env: Env) -> Figures:
    """A penalty on the gradient with respect to the input."""

    def step(model: Net, optimizer: Any, x: torch.Tensor, y: torch.Tensor) -> None:
        x = x.clone().requires_grad_()
        loss = F.cross_entropy(model(x), y)
        rows = F.cross_entropy(model(x), y, reduction="sum")
        (slope,) = torch.autograd.grad(rows, x, create_graph=True, only_inputs=True)
        (loss + 0.1 * slope.square().sum(dim=1).mean()).backward()
        optimizer.step()

    return _stepped(env, step)


@CASES.add(*EVERYWHERE)
def recomputed_in_backward(env: Env) -> Figures:
    """torch.utils.checkpoint calls a part again while backward runs."""
    from torch.utils.checkpoint import checkpoint

    class Recomputed(Net):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.head(checkpoint(self.encoder, x, use_reentrant=False))

    with env.block():
        model = Recomputed()
        train(model, momentum(model.parameters()), loader(49), epochs=2)
    return {"parameters": parameters(model)}


@CASES.add(*EVERYWHERE)
def closure_given_to_the_optimizer(env: Env) -> Figures:
    def step(model: Net, optimizer: Any, x: torch.Tensor, y: torch.Tensor) -> None:
        def closure() -> torch.Tensor:
            optimizer.zero_grad()
            loss = F.cross_entropy(model(x), y)
            loss.backward()
            return loss

        optimizer.step(closure)

    return _stepped(env, step)


@CASES.add(*EVERYWHERE)
def a_layer_put_in_later(env: Env) -> Figures:
    """The head is replaced in mid-training, with a new optimizer."""
    with env.block():
        model = Net()
        train(model, momentum(model.parameters()), loader(61), epochs=1)
        torch.manual_seed(5 + env.rank)
        model.head = nn.Linear(16, 4)
        train(model, momentum(model.parameters()), loader(61), epochs=1)
    return {"parameters": parameters(model)}


@CASES.add(*EVERYWHERE)
def weights_loaded_on_the_way(env: Env) -> Figures:
    """load_state_dict puts values in place; training goes on from them."""
    with env.block():
        model = Net()
        kept = {name: value.clone() for name, value in model.state_dict().items()}
        optimizer = momentum(model.parameters())
        train(model, optimizer, loader(61), epochs=1)
        model.load_state_dict(kept)
        train(model, optimizer, loader(61), epochs=1)
    return {"parameters": parameters(model)}
