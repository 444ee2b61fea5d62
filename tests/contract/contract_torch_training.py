"""Untouched loops: the gradient is that of the mean over the global batch."""

from __future__ import annotations

import copy
from typing import Any

import torch
from contract_case import EVERYWHERE, Env, Figures
from contract_torch_kit import (
    BATCH,
    CASES,
    EPOCHS,
    LONG,
    Net,
    adamw,
    arrays,
    loader,
    momentum,
    parameters,
    samples_of,
    train,
)
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader

import dream


def _untouched(env: Env, make: Any, samples: int, **options: Any) -> Figures:
    with env.block():
        model = Net()
        optimizer = make(model.parameters())
        sizes = train(model, optimizer, loader(samples, **options), epochs=LONG)
    rates = [group["lr"] for group in optimizer.param_groups]
    return {"parameters": parameters(model), "sizes": sizes, "rates": rates}


@CASES.add(*EVERYWHERE)
def even_momentum(env: Env) -> Figures:
    return _untouched(env, momentum, 64)


@CASES.add(*EVERYWHERE)
def even_adamw(env: Env) -> Figures:
    return _untouched(env, adamw, 64)


@CASES.add(*EVERYWHERE)
def uneven_momentum(env: Env) -> Figures:
    return _untouched(env, momentum, 61)


@CASES.add(*EVERYWHERE)
def uneven_adamw(env: Env) -> Figures:
    return _untouched(env, adamw, 61)


@CASES.add(*EVERYWHERE)
def rank_without_sample_momentum(env: Env) -> Figures:
    return _untouched(env, momentum, 49)


@CASES.add(*EVERYWHERE)
def rank_without_sample_adamw(env: Env) -> Figures:
    return _untouched(env, adamw, 49)


@CASES.add(*EVERYWHERE)
def drop_last(env: Env) -> Figures:
    return _untouched(env, momentum, 61, drop_last=True)


@CASES.add(*EVERYWHERE)
def loader_with_workers(env: Env) -> Figures:
    """Batches that other processes read ahead still carry their own share."""
    with env.block():
        model = Net()
        optimizer = momentum(model.parameters())
        train(model, optimizer, loader(49, num_workers=1), epochs=1)
    return {"parameters": parameters(model)}


@CASES.add(*EVERYWHERE)
def rank_dependent_initial_weights(env: Env) -> Figures:
    torch.manual_seed(100 + env.rank)
    return _untouched(env, momentum, 61)


@CASES.add(*EVERYWHERE)
def chained_modules(env: Env) -> Figures:
    """Two modules that the user calls one after the other, each with its optimizer."""
    with env.block():
        first, second = nn.Sequential(nn.Linear(8, 16), nn.Tanh()), nn.Linear(16, 4)
        optimizers = momentum(first.parameters()), adamw(second.parameters())
        for _ in range(EPOCHS):
            for x, y in loader(49):
                for optimizer in optimizers:
                    optimizer.zero_grad()
                F.cross_entropy(second(first(x)), y).backward()
                for optimizer in optimizers:
                    optimizer.step()
    return {"parameters": parameters(first, second)}


@CASES.add(*EVERYWHERE)
def modules_in_a_list(env: Env) -> Figures:
    """A container that is never called itself."""
    with env.block():
        layers = nn.ModuleList([nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 4)])
        optimizer = momentum(layers.parameters())
        for _ in range(EPOCHS):
            for x, y in loader(61):
                optimizer.zero_grad()
                for layer in layers:
                    x = layer(x)
                F.cross_entropy(x, y).backward()
                optimizer.step()
    return {"parameters": parameters(layers)}


@CASES.add(*EVERYWHERE)
def criterion_is_a_module(env: Env) -> Figures:
    with env.block():
        model, criterion = Net(), nn.CrossEntropyLoss(label_smoothing=0.1)
        train(model, momentum(model.parameters()), loader(61), loss=criterion)
    return {"parameters": parameters(model)}


class _Scaled(nn.Module):
    """A criterion that learns a temperature."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(4))

    def forward(self, output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        return F.cross_entropy(output * self.scale, target)


@CASES.add(*EVERYWHERE)
def criterion_with_parameters(env: Env) -> Figures:
    with env.block():
        model, criterion = Net(), _Scaled()
        optimizer = momentum([*model.parameters(), *criterion.parameters()])
        train(model, optimizer, loader(49), loss=criterion)
    return {"parameters": parameters(model, criterion)}


class _Several(nn.Module):
    """Several outputs, in a tuple and a dict."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.left, self.right = nn.Linear(8, 16), nn.Linear(16, 4), nn.Linear(16, 8)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
        hidden = torch.tanh(self.body(x))
        return self.left(hidden), {"again": self.right(hidden), "hidden": hidden}


@CASES.add(*EVERYWHERE)
def several_outputs(env: Env) -> Figures:
    with env.block():
        model = _Several()
        optimizer = momentum(model.parameters())
        for _ in range(EPOCHS):
            for x, y in loader(49):
                optimizer.zero_grad()
                classes, others = model(x)
                loss = F.cross_entropy(classes, y) + 0.1 * F.mse_loss(others["again"], x)
                (loss + 0.01 * others["hidden"].abs().mean()).backward()
                optimizer.step()
    return {"parameters": parameters(model)}


@CASES.add(*EVERYWHERE)
def one_backward_for_each_loss(env: Env) -> Figures:
    """Two losses of one forward pass, each with a backward of its own. DDP itself may refuse."""
    with env.block():
        model = _Several()
        optimizer = momentum(model.parameters())
        try:
            for x, y in loader(61):
                optimizer.zero_grad()
                classes, others = model(x)
                F.cross_entropy(classes, y).backward(retain_graph=True)
                F.mse_loss(others["again"], x).backward()
                optimizer.step()
        except (RuntimeError, dream.DreamError) as error:
            return {"refused": str(error)}
    return {"parameters": parameters(model)}


@CASES.add(*EVERYWHERE)
def called_twice_a_step(env: Env) -> Figures:
    """Two views of a batch through the same model, one backward."""
    with env.block():
        model = Net()
        optimizer = momentum(model.parameters())
        for x, y in loader(49):
            optimizer.zero_grad()
            first, second = model(x), model(x * 0.5)
            (F.cross_entropy(first, y) + F.mse_loss(second, first.detach())).backward()
            optimizer.step()
    return {"parameters": parameters(model)}


@CASES.add(*EVERYWHERE)
def two_models_in_turn(env: Env) -> Figures:
    """A generator and a critic, each stepped by itself."""
    with env.block():
        maker, critic = Net(), nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1))
        making, judging = momentum(maker.parameters()), momentum(critic.parameters())
        for x, _ in loader(61):
            judging.zero_grad()
            critic(maker(x).detach()).square().mean().backward()
            judging.step()
            making.zero_grad()
            (critic(maker(x)) - 1.0).square().mean().backward()
            making.step()
    return {"parameters": parameters(maker, critic)}


@CASES.add(*EVERYWHERE)
def penalty_on_the_weights(env: Env) -> Figures:
    """A term that does not hang on the samples counts once, also beside a short share."""
    with env.block():
        model = Net()
        optimizer = momentum(model.parameters())
        for _ in range(EPOCHS):
            for x, y in loader(61):
                optimizer.zero_grad()
                penalty = sum(p.square().sum() for p in model.parameters())
                (F.cross_entropy(model(x), y) + 0.01 * penalty).backward()
                optimizer.step()
    return {"parameters": parameters(model)}


@CASES.add(*EVERYWHERE)
def clipping_the_norm_between_backward_and_step(env: Env) -> Figures:
    with env.block():
        model = Net()
        clip = lambda: nn.utils.clip_grad_norm_(model.parameters(), 0.05)  # noqa: E731
        train(model, momentum(model.parameters()), loader(61), between=clip)
    return {"parameters": parameters(model)}


@CASES.add(*EVERYWHERE)
def clipping_values_between_backward_and_step(env: Env) -> Figures:
    with env.block():
        model = Net()
        clip = lambda: nn.utils.clip_grad_value_(model.parameters(), 0.01)  # noqa: E731
        train(model, momentum(model.parameters()), loader(49), between=clip)
    return {"parameters": parameters(model)}


@CASES.add(*EVERYWHERE)
def accumulation_by_hand(env: Env) -> Figures:
    """Two backward passes to a step, the last of them over a short batch."""
    with env.block():
        model = Net()
        optimizer = momentum(model.parameters())
        for _ in range(EPOCHS):
            for index, (x, y) in enumerate(loader(61)):
                (F.cross_entropy(model(x), y) / 2).backward()
                if index % 2:
                    optimizer.step()
                    optimizer.zero_grad()
    return {"parameters": parameters(model)}


@CASES.add(*EVERYWHERE)
def frozen_then_trained(env: Env) -> Figures:
    with env.block():
        model = Net()
        model.encoder.requires_grad_(False)
        optimizer = momentum(model.parameters())
        train(model, optimizer, loader(61), epochs=1)
        model.encoder.requires_grad_(True)
        train(model, optimizer, loader(61), epochs=2)
    return {"parameters": parameters(model)}


class _Gated(nn.Module):
    """One of its layers, the first, takes no part in the loss."""

    def __init__(self) -> None:
        super().__init__()
        self.idle, self.used = nn.Linear(8, 4), nn.Linear(8, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.used(x)


@CASES.add(*EVERYWHERE)
def parameters_without_a_part(env: Env) -> Figures:
    """What is not used keeps its weights, with find_unused=True."""
    tensor = "split" in env.cell.options  # which has no need of it, and no such option
    options = {} if tensor else {"find_unused": True}
    with env.block(**options):
        model = _Gated()
        train(model, momentum(model.parameters()), loader(61), epochs=2)
    return {"parameters": parameters(model)}


class _Attention(nn.Module):
    """Its key bias has a gradient that is zero but for rounding."""

    def __init__(self) -> None:
        super().__init__()
        self.attend = nn.MultiheadAttention(8, 2, batch_first=True)
        self.head = nn.Linear(8, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x.unflatten(1, (2, 4)).repeat(1, 1, 2)
        return self.head(self.attend(x, x, x, need_weights=False)[0].mean(dim=1))


@CASES.add(*EVERYWHERE)
def attention_momentum(env: Env) -> Figures:
    with env.block():
        model = _Attention()
        train(model, momentum(model.parameters()), loader(61))
    return {"parameters": parameters(model)}


@CASES.add(*EVERYWHERE)
def attention_adamw(env: Env) -> Figures:
    with env.block():
        model = _Attention()
        start = copy.deepcopy(model)
        train(model, adamw(model.parameters()), loader(61), epochs=LONG)
    figures: Figures = {"parameters": parameters(model)}
    if env.mode == "plain":
        figures["in_parts"] = {parts: _in_parts(copy.deepcopy(start), parts) for parts in (2, 3, 4)}
    return figures


def _in_parts(model: nn.Module, parts: int) -> Any:
    """One device's own training with each batch summed in as many parts: the noise's size."""
    optimizer = adamw(model.parameters())
    for _ in range(LONG):
        for x, y in loader(61):
            optimizer.zero_grad()
            for part in range(parts):
                share = len(y[part::parts]) / len(y)
                (F.cross_entropy(model(x[part::parts]), y[part::parts]) * share).backward()
            optimizer.step()
    return parameters(model)


@CASES.add(*EVERYWHERE)
def hand_sliced_batches(env: Env) -> Figures:
    """Batches that no loader dealt count as equal shares."""
    x, y = arrays(48)
    with env.block():
        model = Net()
        optimizer = momentum(model.parameters())
        for _ in range(EPOCHS):
            for begin in range(0, 48, 12):
                part = slice(begin + env.turn, begin + 12, env.shares)
                optimizer.zero_grad()
                F.cross_entropy(model(x[part]), y[part]).backward()
                optimizer.step()
    return {"parameters": parameters(model)}


@CASES.add(*EVERYWHERE)
def batches_kept_and_used_again(env: Env) -> Figures:
    """A list of a loader's batches: each still counts for what it is."""
    with env.block():
        model = Net()
        train(model, momentum(model.parameters()), list(loader(49)))
    return {"parameters": parameters(model)}


@CASES.add(*EVERYWHERE)
def epochs_left_early(env: Env) -> Figures:
    """A break in mid-epoch, then equal shares by hand: the loader's weight does not stick."""
    x, y = arrays(12)
    own = slice(env.turn, None, env.shares)
    with env.block():
        model = Net()
        optimizer = momentum(model.parameters())
        batches = DataLoader(samples_of(13), batch_size=12)
        for _ in range(EPOCHS):
            for a, b in batches:
                optimizer.zero_grad()
                F.cross_entropy(model(a), b).backward()
                optimizer.step()
                if len(b) < 3:
                    break
            optimizer.zero_grad()
            F.cross_entropy(model(x[own]), y[own]).backward()
            optimizer.step()
    return {"parameters": parameters(model)}


class _Words(nn.Module):
    """Takes its input by keyword, out of a batch that is a dict."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = Net()

    def forward(self, *, values: torch.Tensor, scale: float = 1.0) -> torch.Tensor:
        return self.inner(values * scale)


@CASES.add(*EVERYWHERE)
def batches_that_are_dicts(env: Env) -> Figures:
    x, y = arrays(49)
    rows = [{"values": a, "target": b} for a, b in zip(x, y, strict=True)]
    with env.block():
        model = _Words()
        optimizer = momentum(model.parameters())
        for _ in range(EPOCHS):
            for batch in DataLoader(rows, batch_size=BATCH):  # type: ignore[arg-type]
                optimizer.zero_grad()
                output = model(values=batch["values"], scale=0.9)
                F.cross_entropy(output, batch["target"]).backward()
                optimizer.step()
    return {"parameters": parameters(model)}


@CASES.add(*EVERYWHERE)
def batches_moved_and_changed(env: Env) -> Figures:
    """What the model is given is no longer the tensor that the loader yielded."""
    with env.block():
        model = Net()
        optimizer = momentum(model.parameters())
        for _ in range(EPOCHS):
            for x, y in loader(49):
                optimizer.zero_grad()
                F.cross_entropy(model((x * 2.0).to("cpu", torch.float32)), y.long()).backward()
                optimizer.step()
    return {"parameters": parameters(model)}
