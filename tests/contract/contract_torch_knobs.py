"""The knobs: each with the numbers of one device. Accumulation changes none of them, so there
`single` runs without it, and once with it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from contract_case import EVERYWHERE, WITH_DREAM, Env, Figures, refusal
from contract_torch_explicit import sentences, token_loss, tokens
from contract_torch_kit import (
    CASES,
    EPOCHS,
    Net,
    adamw,
    arrays,
    loader,
    momentum,
    parameters,
    train,
)
from contract_torch_levels import Normed
from torch import nn
from torch.nn import functional as F
from torch.optim import lr_scheduler
from torch.profiler import ProfilerActivity, profile
from torch.utils.data import DataLoader, TensorDataset

Trained = Callable[[Any], Figures]


def _micro(env: Env, most: int, run: Trained, **knobs: Any) -> Figures:
    """The figures of `run(strategy)` with micro-batches; of one device without, and as
    "accumulated" with them."""
    figures: Figures = {}
    if env.mode == "single":
        with env.block(knobs=knobs) as strategy:
            figures = run(strategy)
        torch.manual_seed(0)
    with env.block(knobs={"accumulate": most, **knobs}) as strategy:
        found = run(strategy)
    return {**figures, "accumulated": found["parameters"]} if figures else found


@CASES.add(*WITH_DREAM)
def accumulated_momentum(env: Env) -> Figures:
    def run(_: Any) -> Figures:
        model = Net()
        train(model, momentum(model.parameters()), loader(61))
        return {"parameters": parameters(model)}

    return _micro(env, 4, run)


@CASES.add(*WITH_DREAM)
def accumulated_adamw_rank_without_sample(env: Env) -> Figures:
    """Gradients are cleared after each step, at first there are none."""

    def run(_: Any) -> Figures:
        model = Net()
        optimizer = adamw(model.parameters())
        for _ in range(EPOCHS):
            for x, y in loader(49):
                F.cross_entropy(model(x), y).backward()
                optimizer.step()
                optimizer.zero_grad()
        return {"parameters": parameters(model)}

    return _micro(env, 3, run)


@CASES.add(*WITH_DREAM)
def accumulated_with_schedules_and_clipping(env: Env) -> Figures:
    """What a loop does once a step, and once an epoch."""

    def run(_: Any) -> Figures:
        model = Net()
        optimizer = momentum(model.parameters())
        batches = loader(61, shuffle=True)
        cycle = lr_scheduler.OneCycleLR(optimizer, 0.2, total_steps=len(batches) * EPOCHS)
        decay = lr_scheduler.StepLR(optimizer, 2)
        rates = []
        for _ in range(EPOCHS):
            for x, y in batches:
                model.zero_grad()
                F.cross_entropy(model(x), y).backward()
                nn.utils.clip_grad_norm_(model.parameters(), 0.05)
                optimizer.step()
                cycle.step()
            decay.step()
            rates.append(optimizer.param_groups[0]["lr"])
        return {"parameters": parameters(model), "rates": rates, "count": cycle.last_epoch}

    return _micro(env, 4, run)


@CASES.add(*WITH_DREAM)
def accumulated_by_two_optimizers(env: Env) -> Figures:
    def run(_: Any) -> Figures:
        first, second = nn.Sequential(nn.Linear(8, 16), nn.Tanh()), nn.Linear(16, 4)
        optimizers = momentum(first.parameters()), adamw(second.parameters())
        for _ in range(EPOCHS):
            for x, y in loader(61):
                for optimizer in optimizers:
                    optimizer.zero_grad()
                F.cross_entropy(second(first(x)), y).backward()
                for optimizer in optimizers:
                    optimizer.step()
        return {"parameters": parameters(first, second)}

    return _micro(env, 2, run)


def _stepped(strategy: Any, batches: Any, loss: Any, **options: Any) -> Figures:
    model = Net()
    step = strategy.train_step(model, loss, momentum(model.parameters()), **options)
    values = [float(step(*batch)) for _ in range(EPOCHS) for batch in batches()]
    return {"parameters": parameters(model), "values": values}


@CASES.add(*WITH_DREAM)
def accumulated_step(env: Env) -> Figures:
    """The last batch's micro-batches are unequal."""
    return _micro(env, 4, lambda s: _stepped(s, lambda: loader(61), F.cross_entropy))


@CASES.add(*WITH_DREAM)
def accumulated_step_weighted_by_tokens(env: Env) -> Figures:
    def run(strategy: Any) -> Figures:
        data = sentences(49, hollow=True)
        return _stepped(
            strategy, lambda: DataLoader(data, batch_size=16), token_loss, weight=tokens
        )

    return _micro(env, 4, run)


@CASES.add(*WITH_DREAM)
def accumulated_loop_weighed_by_tokens(env: Env) -> Figures:
    def run(strategy: Any) -> Figures:
        model = Net()
        optimizer = momentum(model.parameters())
        for _ in range(EPOCHS):
            for x, y in DataLoader(sentences(49, hollow=True), batch_size=16):
                optimizer.zero_grad()
                strategy.weigh(token_loss(model(x), y), tokens(x, y)).backward()
                optimizer.step()
        return {"parameters": parameters(model)}

    return _micro(env, 4, run)


@CASES.add(*WITH_DREAM)
def accumulated_and_clipped(env: Env) -> Figures:
    def run(_: Any) -> Figures:
        model = Net()
        train(model, momentum(model.parameters()), loader(61))
        return {"parameters": parameters(model)}

    return _micro(env, 4, run, clip_norm=0.05)


def _clipped(env: Env, by_hand: Callable[[nn.Module], object], **knobs: Any) -> Figures:
    with env.block(knobs=knobs):
        model = Net()
        between = (lambda: by_hand(model)) if env.mode == "plain" else (lambda: None)
        train(model, momentum(model.parameters()), loader(61), between=between)
    return {"parameters": parameters(model)}


@CASES.add(*EVERYWHERE)
def clip_norm(env: Env) -> Figures:
    return _clipped(env, lambda m: nn.utils.clip_grad_norm_(m.parameters(), 0.05), clip_norm=0.05)


@CASES.add(*EVERYWHERE)
def clip_value(env: Env) -> Figures:
    return _clipped(env, lambda m: nn.utils.clip_grad_value_(m.parameters(), 0.01), clip_value=0.01)


@CASES.add(*WITH_DREAM)
def clip_norm_in_a_step(env: Env) -> Figures:
    with env.block(knobs={"clip_norm": 0.05}) as strategy:
        return _stepped(strategy, lambda: loader(49), F.cross_entropy)


@contextmanager
def _buckets_noted() -> Iterator[list[int]]:
    """What DDP's buckets carry by the hook, of those that are made inside."""
    sizes: list[int] = []
    register = nn.parallel.DistributedDataParallel.register_comm_hook

    def noting(ddp: Any, state: Any, hook: Any) -> None:
        def noted(state: Any, bucket: Any) -> Any:
            sizes.append(bucket.buffer().nbytes)
            return hook(state, bucket)

        noted.__annotations__.clear()
        register(ddp, state, noted)

    nn.parallel.DistributedDataParallel.register_comm_hook = noting
    try:
        yield sizes
    finally:
        nn.parallel.DistributedDataParallel.register_comm_hook = register


@contextmanager
def _counted_into(sizes: list[int]) -> Iterator[None]:
    """What DDP's buckets carry inside, by the hook or by gloo; and what FSDP2 reduces and scatters,
    which gloo does as a sum of the whole."""
    sizes.clear()
    with profile(activities=[ProfilerActivity.CPU], record_shapes=True) as watched:
        yield
    for event in watched.events() or []:
        if event.name == "gloo:all_reduce":
            sizes.append(4 * max(event.input_shapes[0] or [0]))


def _counted(env: Env, **knobs: Any) -> list[int]:
    """Once the first losses have been looked at, which the ranks compare."""
    with _buckets_noted() as sizes, env.block(knobs=knobs):
        model = Net()
        optimizer = momentum(model.parameters())
        train(model, optimizer, loader(64), epochs=2)
        with _counted_into(sizes):
            train(model, optimizer, loader(64), epochs=1)
        return [*sizes]


@CASES.add("cell")
def communications_of_an_update(env: Env) -> Figures:
    """Bytes of each bucket that travels in four updates, without and with micro-batches."""
    return {
        "plain": _counted(env),
        "accumulated": _counted(env, accumulate=4),
        "wanted": 4 * sum(p.numel() for p in Net().parameters()),
    }


@CASES.add(*WITH_DREAM)
def precision_bfloat16(env: Env) -> Figures:
    """What comes out of the model, and what is trained, is float32."""

    def run(strategy: Any) -> Figures:
        model = Net()
        optimizer = momentum(model.parameters())
        dtypes = set()
        for x, y in loader(61):
            optimizer.zero_grad()
            output = model(x)
            F.cross_entropy(output, y).backward()
            optimizer.step()
            dtypes |= {output.dtype, *(p.grad.dtype for p in model.parameters())}
        step = strategy.train_step(model, F.cross_entropy, optimizer)
        for batch in loader(49):
            step(*batch)
        return {"parameters": parameters(model), "dtypes": [str(d) for d in dtypes]}

    return _micro(env, 2 if env.mode == "single" else 1, run, precision="bfloat16")


@CASES.add(*EVERYWHERE)
def batch_norm_over_all_ranks(env: Env) -> Figures:
    """Uneven shares, and ranks with no sample of the last batch. A step and a loop in turn."""
    with env.block(knobs={"sync_batch_norm": True}) as strategy:
        model = Normed()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9)
        train(model, optimizer, loader(61), epochs=3)
        model.eval()
        with torch.no_grad():
            shown = model(arrays(9)[0]).numpy()
        model.train()
        if strategy is None:
            train(model, optimizer, loader(50), epochs=2)
        else:
            step = strategy.train_step(model, F.cross_entropy, optimizer)
            for _ in range(2):
                for batch in loader(50):
                    step(*batch)
    return {"parameters": parameters(model) | {"shown": shown}}


def _counted_mean(output: torch.Tensor, target: Any) -> torch.Tensor:
    """Over the samples that count; nan where none does."""
    y, counts = target[:, 0].long(), target[:, 1]
    return (F.cross_entropy(output, y, reduction="none") * counts).sum() / counts.sum()


@CASES.add(*WITH_DREAM)
def batch_norm_and_a_count_of_zero(env: Env) -> Figures:
    """In one batch no sample of rank 1 counts, but its statistics do, and so their gradients."""
    x, y = arrays(48)
    hollow = torch.tensor([16 <= i < 32 and (i % 2 == 1 or i % 3 == 1) for i in range(48)])
    target = torch.stack([y.float(), (~hollow).float()], dim=1)
    data = TensorDataset(x, target)
    with env.block(knobs={"sync_batch_norm": True}) as strategy:
        model = Normed()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9)
        step = strategy.train_step(
            model, _counted_mean, optimizer, weight=lambda _, target: target[:, 1].sum()
        )
        for _ in range(2):
            for batch in DataLoader(data, batch_size=16):
                step(*batch)
            for a, b in DataLoader(data, batch_size=16):
                optimizer.zero_grad()
                strategy.weigh(_counted_mean(model(a), b), b[:, 1].sum()).backward()
                optimizer.step()
    return {"parameters": parameters(model)}


DDP = ({"bucket_view": False}, {"static_graph": True}, {"find_unused": True}, {"bucket_mb": 0.001})


@CASES.add("cell")
def knobs_of_ddp(env: Env) -> Figures:
    found = {}
    for knobs in DDP:
        torch.manual_seed(0)
        with env.block(knobs=knobs):
            model = Net()
            train(model, momentum(model.parameters()), loader(61))
        found[str(knobs)] = parameters(model)
    return found


def _looped(act: Callable[..., Any], **knobs: Any) -> Callable[[Env], Figures]:
    """What `act(strategy, model, optimizer, x, y)`, called for each batch, raises."""

    def run(env: Env) -> Figures:
        def loop() -> None:
            with env.block(knobs={"accumulate": 4, **knobs}) as strategy:
                model = Net()
                optimizer = momentum(model.parameters())
                for x, y in loader(64):
                    act(strategy, model, optimizer, x, y)

        return refusal(loop)

    return run


def _every_other(strategy: Any, model: Any, optimizer: Any, x: Any, y: Any) -> None:
    """A loop that accumulates by itself on top."""
    F.cross_entropy(model(x), y).backward()
    strategy.turn = getattr(strategy, "turn", 0) + 1
    if strategy.turn % 2 == 0:
        optimizer.step()
        optimizer.zero_grad()


def _twice(_strategy: Any, model: Any, optimizer: Any, x: Any, y: Any) -> None:
    for _ in range(2):
        optimizer.zero_grad()
        F.cross_entropy(model(x), y).backward()
        optimizer.step()


def _clip_unseen(_strategy: Any, model: Any, optimizer: Any, x: Any, y: Any) -> None:
    """By a function that was imported before the block."""
    optimizer.zero_grad()
    F.cross_entropy(model(x), y).backward()
    nn.utils.clip_grad.clip_grad_norm_(model.parameters(), 0.01)
    optimizer.step()


def _clear_unseen(_strategy: Any, model: Any, optimizer: Any, x: Any, y: Any) -> None:
    for parameter in model.parameters():
        parameter.grad = None
    F.cross_entropy(model(x), y).backward()
    optimizer.step()


def _closure(_strategy: Any, model: Any, optimizer: Any, x: Any, y: Any) -> None:
    optimizer.step(lambda: F.cross_entropy(model(x), y).backward())


def _scaler(_strategy: Any, _model: Any, _optimizer: Any, _x: Any, _y: Any) -> None:
    torch.amp.GradScaler("cpu")


@CASES.add(*WITH_DREAM)
def knobs_refused(env: Env) -> Figures:
    def by_hand() -> None:
        x, y = arrays(8)
        with env.block(knobs={"accumulate": 2}):
            model = Net()
            train(model, momentum(model.parameters()), [(x, y)])

    return {
        "every_other": _looped(_every_other)(env),
        "twice": _looped(_twice)(env),
        "clip_unseen": _looped(_clip_unseen)(env),
        "clear_unseen": _looped(_clear_unseen)(env),
        "closure": _looped(_closure)(env),
        "scaler": _looped(_scaler)(env),
        "by_hand": refusal(by_hand),
    }


@CASES.add("cell")
def knobs_a_split_cannot_honour(env: Env) -> Figures:
    """Asked for one by one when the strategy is made."""

    def asked(**knobs: Any) -> Figures:
        def make() -> None:
            with env.block(knobs=knobs):
                pass

        return refusal(make)

    return {
        "precision": asked(precision="O2"),
        "recompute": asked(recompute=True),
        "sync_batch_norm": asked(sync_batch_norm=True),
    }


@CASES.add(*WITH_DREAM)
def an_update_left_early(env: Env) -> Figures:
    """What was computed of it is dropped, and the next pass begins with a whole update."""
    with env.block(knobs={"accumulate": 4}):
        model = Net()
        optimizer = momentum(model.parameters())
        batches = loader(64)
        for index, (x, y) in enumerate(batches):
            F.cross_entropy(model(x), y).backward()
            optimizer.step()
            optimizer.zero_grad()
            if index == 1:
                break
        begin = parameters(model)
        train(model, optimizer, loader(64), epochs=1)
    torch.manual_seed(0)
    with env.block():
        other = Net()
        train(other, momentum(other.parameters()), loader(64), epochs=1)
    return {"parameters": parameters(model), "begin": begin, "never": parameters(other)}
