"""Ordinary torch loops, each of which must end with the weights of one device."""

from __future__ import annotations

import gc
import traceback
from collections.abc import Callable, Collection, Iterator
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint
from torch.utils.data import BatchSampler, DataLoader, RandomSampler, TensorDataset

import dream

CLASSES, FEATURES, RATE = 5, 12, 0.1


def data(samples: int = 33) -> TensorDataset:
    draw = torch.Generator().manual_seed(3)
    inputs = torch.randn(samples, FEATURES, generator=draw)
    return TensorDataset(inputs, torch.randint(0, CLASSES, (samples,), generator=draw))


def net() -> nn.Sequential:
    return nn.Sequential(nn.Linear(FEATURES, 32), nn.ReLU(), nn.Linear(32, CLASSES))


def momentum(*modules: nn.Module) -> torch.optim.SGD:
    parameters = [p for module in modules for p in module.parameters()]
    return torch.optim.SGD(parameters, lr=RATE, momentum=0.9)


def weights(*modules: nn.Module) -> torch.Tensor:
    return torch.cat([p.detach().reshape(-1) for m in modules for p in m.parameters()])


def descend(optimizer: torch.optim.Optimizer, loss: torch.Tensor, **backward: Any) -> None:
    optimizer.zero_grad()
    loss.backward(**backward)
    optimizer.step()


def epochs(loader: DataLoader[Any], times: int = 2) -> Iterator[Any]:
    for _ in range(times):
        yield from loader


def loader(samples: int = 33, **options: Any) -> DataLoader[Any]:
    return DataLoader(data(samples), batch_size=16, **{"shuffle": True, **options})


def batches_kept_in_a_list() -> torch.Tensor:
    model = net()
    optimizer = momentum(model)
    kept = list(loader())
    for x, y in kept * 3:
        descend(optimizer, F.cross_entropy(model(x), y))
    return weights(model)


def batch_read_ahead() -> torch.Tensor:
    model = net()
    optimizer = momentum(model)
    batches = epochs(loader())
    held = next(batches)
    for ahead in batches:
        descend(optimizer, F.cross_entropy(model(held[0]), held[1]))
        held = ahead
    descend(optimizer, F.cross_entropy(model(held[0]), held[1]))
    return weights(model)


def loader_workers() -> torch.Tensor:
    model = net()
    optimizer = momentum(model)
    for x, y in epochs(loader(num_workers=2, persistent_workers=True), 2):
        descend(optimizer, F.cross_entropy(model(x), y))
    return weights(model)


def few_samples_in_an_order() -> torch.Tensor:
    """As many as a rank's share of the batch before, by a loader's workers and by a sampler."""
    model = net()
    optimizer = momentum(model)
    few = DataLoader(data(8), batch_size=4, shuffle=True, num_workers=1)
    kept = data(8)
    for _ in range(2):
        for x, y in loader(32):
            descend(optimizer, F.cross_entropy(model(x), y))
        for x, y in few:
            descend(optimizer, F.cross_entropy(model(x), y))
        for x, _ in loader(32):
            for index in BatchSampler(RandomSampler(kept), 4, drop_last=False):
                inputs, names = kept[index]
                descend(optimizer, F.cross_entropy(model(inputs), names) + model(x).mean())
    return weights(model)


def frozen_after_the_call() -> torch.Tensor:
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), lr=RATE, momentum=0.9, weight_decay=0.1)
    for number, (x, y) in enumerate(epochs(loader())):
        outputs = model(x)
        model[0].requires_grad_(number % 2 == 0)
        descend(optimizer, F.cross_entropy(outputs, y))
        model[0].requires_grad_(True)
    return weights(model)


def frozen_with_gradients_of_0() -> torch.Tensor:
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), lr=RATE, momentum=0.9, weight_decay=0.1)
    for number, (x, y) in enumerate(epochs(loader())):
        optimizer.zero_grad(set_to_none=False)
        outputs = model(x)
        model[0].requires_grad_(number % 2 == 0)
        F.cross_entropy(outputs, y).backward()
        model[0].requires_grad_(True)
        optimizer.step()
    return weights(model)


def freezing_and_thawing() -> torch.Tensor:
    model = net()
    model[0].requires_grad_(False)
    optimizer = momentum(model)
    batches = loader()
    for epoch in range(4):
        model[0].requires_grad_(epoch >= 2)
        model[2].requires_grad_(epoch < 3)
        for x, y in batches:
            descend(optimizer, F.cross_entropy(model(x), y))
    return weights(model)


def head_replaced() -> torch.Tensor:
    model = net()
    batches = loader()
    optimizer = momentum(model)
    for x, y in batches:
        descend(optimizer, F.cross_entropy(model(x), y))
    torch.manual_seed(4)
    model[2] = nn.Linear(32, CLASSES)
    optimizer = momentum(model)
    for x, y in batches:
        descend(optimizer, F.cross_entropy(model(x), y))
    return weights(model)


def grown_and_cast() -> torch.Tensor:
    """A new layer comes by the optimizer that is there; later all are of another dtype."""
    model, batches = net(), loader()
    optimizer = momentum(model)
    for epoch in range(3):
        if epoch == 1:
            model.append(nn.Linear(CLASSES, CLASSES))
            optimizer.add_param_group({"params": model[3].parameters()})
        if epoch == 2:
            optimizer = momentum(model.double())
        for x, y in batches:
            descend(optimizer, F.cross_entropy(model(x.to(model[0].weight.dtype)), y))
    return weights(model)


class Heads(nn.Module):
    """Two heads on a trunk, of which a call uses one; and a layer that no call uses."""

    def __init__(self) -> None:
        super().__init__()
        self.trunk = nn.Linear(FEATURES, 16)
        self.heads = nn.ModuleList(nn.Linear(16, CLASSES) for _ in range(2))
        self.spare = nn.Linear(2, 2)

    def forward(self, x: torch.Tensor, head: int) -> torch.Tensor:
        return self.heads[head](self.trunk(x).relu())


def heads_by_turns() -> torch.Tensor:
    model = Heads()
    optimizer = momentum(model)
    for index, (x, y) in enumerate(epochs(loader())):
        descend(optimizer, F.cross_entropy(model(x, index % 3 % 2), y))
    return weights(model)


def recomputed_activations() -> torch.Tensor:
    model = net()
    optimizer = momentum(model)
    for x, y in loader():
        descend(optimizer, F.cross_entropy(checkpoint(model, x, use_reentrant=False), y))
    return weights(model)


def users_own_accumulation() -> torch.Tensor:
    model = net()
    optimizer = momentum(model)
    for index, (x, y) in enumerate(loader(29)):
        (F.cross_entropy(model(x), y) / 2).backward()
        if index % 2:
            optimizer.step()
            optimizer.zero_grad()
    return weights(model)


def compiled_model() -> torch.Tensor:
    model = net()
    compiled = torch.compile(model, backend="eager", fullgraph=True)
    optimizer = momentum(model)
    for x, y in loader(29):
        descend(optimizer, F.cross_entropy(compiled(x), y))
    return weights(model)


def model_compiled_in_place() -> torch.Tensor:
    model = Coder()
    model.compile(backend="eager", fullgraph=True)
    optimizer = momentum(model)
    for x, y in loader(29):
        descend(optimizer, F.cross_entropy(model(x), y))
    return weights(model)


class Coder(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.encoder = nn.Linear(FEATURES, 8)
        self.decoder = nn.Linear(8, CLASSES)

    def encode(self, x: torch.Tensor) -> torch.Tensor:
        return torch.relu(self.encoder(x))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.decode(self.encode(x))

    def decode(self, x: torch.Tensor) -> torch.Tensor:
        return self.decoder(x)  # type: ignore[no-any-return]


def methods_beside_forward() -> torch.Tensor:
    model = Coder()
    optimizer = momentum(model)
    for x, y in epochs(loader()):
        descend(optimizer, F.cross_entropy(model.decode(model.encode(x)), y))
    return weights(model)


def part_called_before_the_whole() -> torch.Tensor:
    model = net()
    optimizer = momentum(model)
    batches = loader()
    model[0](next(iter(batches))[0])
    for x, y in batches:
        descend(optimizer, F.cross_entropy(model(x), y))
    return weights(model)


def two_players() -> torch.Tensor:
    maker, judge = nn.Linear(FEATURES, FEATURES), nn.Linear(FEATURES, 1)
    make, judged = momentum(maker), momentum(judge)
    for x, _ in epochs(loader(29)):
        descend(judged, judge(x).mean() - judge(maker(x).detach()).mean())
        descend(make, judge(maker(x)).mean())
    return weights(maker, judge)


def tied_weights_across_modules() -> torch.Tensor:
    first, second = nn.Linear(FEATURES, FEATURES), nn.Linear(FEATURES, FEATURES)
    second.weight = first.weight
    optimizer = torch.optim.SGD([first.weight, first.bias, second.bias], lr=RATE)
    for x, y in epochs(loader(29)):
        descend(optimizer, F.cross_entropy(second(torch.relu(first(x))), y))
    return torch.cat([weights(first), second.bias.detach()])


def penalty_on_the_weights() -> torch.Tensor:
    model = net()
    optimizer = momentum(model)
    for x, y in epochs(loader()):
        penalty = sum(p.square().sum() for p in model.parameters())
        descend(optimizer, F.cross_entropy(model(x), y) + 0.01 * penalty)
    return weights(model)


def scaled_gradients() -> torch.Tensor:
    model = net()
    optimizer = momentum(model)
    scaler = torch.amp.GradScaler("cpu")
    for x, y in epochs(loader(29)):
        optimizer.zero_grad()
        scaler.scale(F.cross_entropy(model(x), y)).backward()
        scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(model.parameters(), 0.1)
        scaler.step(optimizer)
        scaler.update()
    return weights(model)


def users_sampler() -> torch.Tensor:
    model = net()
    optimizer = momentum(model)
    dataset = data(61)
    draw = torch.Generator().manual_seed(8 + (dream_rank() > 0))
    sampler = RandomSampler(dataset, generator=draw)
    for x, y in epochs(DataLoader(dataset, batch_size=16, sampler=sampler)):
        descend(optimizer, F.cross_entropy(model(x), y))
    return weights(model)


def dream_rank() -> int:
    strategy = dream.current()
    assert strategy is not None
    return strategy.topology.rank


def closure_optimizer() -> torch.Tensor:
    model = nn.Linear(FEATURES, CLASSES)
    optimizer = torch.optim.LBFGS(model.parameters(), lr=RATE, max_iter=3)
    for x, y in loader(29):

        def loss(x: torch.Tensor = x, y: torch.Tensor = y) -> torch.Tensor:
            optimizer.zero_grad()
            value = F.cross_entropy(model(x), y)
            value.backward()
            return value

        optimizer.step(loss)
    return weights(model)


def model_that_one_rank_forgets() -> torch.Tensor:
    """Its optimizer is collected there, and on the others lives on, with gradients that no module
    of the block has reduced."""
    kept: list[Any] = [net()]
    kept.append(momentum(*kept))
    for parameter in kept[0].parameters():
        parameter.grad = torch.ones_like(parameter)
    if dream_rank():
        kept.clear()
        gc.collect()
    model = net()
    optimizer = momentum(model)
    for x, y in epochs(loader()):
        descend(optimizer, F.cross_entropy(model(x), y))
    return weights(model)


def gradients_by_parameters() -> torch.Tensor:
    model = net()
    optimizer = momentum(model)
    for x, y in epochs(loader(29)):
        found = torch.autograd.grad(F.cross_entropy(model(x), y), list(model.parameters()))
        for parameter, gradient in zip(model.parameters(), found, strict=True):
            parameter.grad = gradient
        optimizer.step()
    return weights(model)


LOOPS: dict[str, Callable[[], torch.Tensor]] = {
    loop.__name__: loop
    for loop in (
        batches_kept_in_a_list,
        batch_read_ahead,
        loader_workers,
        few_samples_in_an_order,
        freezing_and_thawing,
        frozen_after_the_call,
        frozen_with_gradients_of_0,
        head_replaced,
        grown_and_cast,
        heads_by_turns,
        recomputed_activations,
        users_own_accumulation,
        compiled_model,
        model_compiled_in_place,
        methods_beside_forward,
        part_called_before_the_whole,
        two_players,
        tied_weights_across_modules,
        penalty_on_the_weights,
        scaled_gradients,
        users_sampler,
        model_that_one_rank_forgets,
        gradients_by_parameters,
    )
}


def part_of_a_model_called_alone() -> None:
    model = net()
    optimizer = momentum(model)
    for index, (x, _) in enumerate(loader(64)):
        descend(optimizer, (model[0] if index else model)(x).mean())


def part_after_the_whole() -> None:
    model = net()
    optimizer = momentum(model)
    for x, y in loader(64):
        optimizer.zero_grad()
        F.cross_entropy(model(x), y).backward()
        model[0](x).mean().backward()
        optimizer.step()


def two_backwards_of_one_forward() -> None:
    model = net()
    optimizer = momentum(model)
    for x, y in loader(64):
        optimizer.zero_grad()
        output = model(x)
        F.cross_entropy(output, y).backward(retain_graph=True)
        output.square().mean().backward()
        optimizer.step()


def gradients_set_by_hand() -> None:
    model = net()
    optimizer = momentum(model)
    for x, y in loader(64):
        loss = F.cross_entropy(model(x), y)
        found = torch.autograd.grad(loss, list(model.parameters()), create_graph=True)
        for parameter, gradient in zip(model.parameters(), found, strict=True):
            parameter.grad = gradient.detach()
        optimizer.step()


def two_backwards_into_two_heads() -> None:
    model = Heads()
    optimizer = momentum(model)
    for x, y in loader(64):
        optimizer.zero_grad()
        hidden = model.trunk(x).relu()
        both = [model(x, 0), model.heads[1](hidden)]
        F.cross_entropy(both[0], y).backward()
        both[1].square().mean().backward()
        optimizer.step()


def batch_sampler_put_in_later() -> None:
    batches = loader(64)
    object.__setattr__(batches, "batch_sampler", BatchSampler(range(64), 16, drop_last=False))
    next(iter(batches))


def model_without_shapes() -> None:
    model = nn.LazyLinear(CLASSES)
    for x, y in loader(64):
        F.cross_entropy(model(x), y).backward()


def average_of_whole_numbers() -> None:
    strategy = dream.current()
    assert strategy is not None
    strategy.communicator.all_reduce(torch.arange(3))


FAULTS: dict[str, Callable[[], None]] = {
    fault.__name__: fault
    for fault in (
        part_of_a_model_called_alone,
        part_after_the_whole,
        two_backwards_of_one_forward,
        gradients_set_by_hand,
        two_backwards_into_two_heads,
        batch_sampler_put_in_later,
        model_without_shapes,
        average_of_whole_numbers,
    )
}


HELD = frozenset(
    {
        "batches_kept_in_a_list",
        "recomputed_activations",
        "users_own_accumulation",
        "penalty_on_the_weights",
        "users_sampler",
        "freezing_and_thawing",
        "loader_workers",
    }
)
"""Those that the contract has a case of, on 2 ranks too."""


def run_held() -> dict[str, Any]:
    return weights_of(HELD)


def run_all() -> dict[str, Any]:
    """The other loops' weights and every fault's error, on this rank."""
    return weights_of(LOOPS.keys() - HELD) | errors()


def weights_of(loops: Collection[str]) -> dict[str, Any]:
    torch.set_num_threads(1)
    results: dict[str, Any] = {}
    for name, loop in ((name, loop) for name, loop in LOOPS.items() if name in loops):
        torch.manual_seed(1)
        with dream.strategy():
            try:
                results[name] = loop().numpy()
            except Exception:
                results[name] = traceback.format_exc()
    return results


def errors() -> dict[str, Any]:
    results: dict[str, Any] = {}
    for name, fault in FAULTS.items():
        try:
            with dream.strategy():
                fault()
            results[name] = "nothing was raised"
        except dream.DreamError as error:
            results[name] = f"{type(error).__name__}: {error}"
    return results
