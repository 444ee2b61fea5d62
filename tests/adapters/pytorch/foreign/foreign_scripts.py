"""Scripts as people write them for several processes or for none, each to be run plain and in the
block. A script is a function of its block; `plain` is whether it trains without dream."""

from __future__ import annotations

import os
import traceback
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.distributed import destroy_process_group, init_process_group
from torch.nn.parallel import DistributedDataParallel as DDP  # noqa: N817  # as all name it
from torch.utils.data import BatchSampler, DataLoader, Sampler, TensorDataset
from torch.utils.data.distributed import DistributedSampler

import dream

Block = AbstractContextManager[Any]
GLOBAL, FEATURES, CLASSES = 12, 6, 4


def data(samples: int = 53) -> TensorDataset:
    draw = torch.Generator().manual_seed(3)
    inputs = torch.randn(samples, FEATURES, generator=draw)
    return TensorDataset(inputs, torch.randint(0, CLASSES, (samples,), generator=draw))


def net() -> nn.Sequential:
    return nn.Sequential(
        nn.Linear(FEATURES, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, CLASSES)
    )


def weights(model: nn.Module) -> torch.Tensor:
    return torch.cat([p.detach().reshape(-1).clone() for p in model.parameters()])


def momentum(model: nn.Module) -> torch.optim.SGD:
    return torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)


def train(model: nn.Module, optimizer: torch.optim.Optimizer, batches: Any) -> None:
    for x, y in batches:
        loss = F.cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


def vision_reference(block: Block, plain: bool) -> torch.Tensor:
    """Sampler, SyncBatchNorm, DDP, distributed evaluation."""
    with block:
        distributed = "RANK" in os.environ and not plain
        if distributed:
            dist.init_process_group(backend="gloo", init_method="env://")
            dist.barrier()
        world = dist.get_world_size() if distributed else 1
        dataset = data()
        sampler: Any = (
            DistributedSampler(dataset) if distributed else DistributedSampler(dataset, 1, 0)
        )
        test_sampler = DistributedSampler(dataset, shuffle=False) if distributed else None
        train_loader = DataLoader(dataset, batch_size=GLOBAL // world, sampler=sampler)
        test_loader = DataLoader(dataset, batch_size=GLOBAL // world, sampler=test_sampler)
        model: nn.Module = net()
        if distributed:
            model = nn.SyncBatchNorm.convert_sync_batchnorm(model)
        optimizer = momentum(model)
        bare = model
        if distributed:
            model = DDP(model)
            bare = model.module
            assert isinstance(model, DDP)
            assert all(name.startswith("module.") for name in model.state_dict())
        for epoch in range(3):
            sampler.set_epoch(epoch)
            model.train()
            train(model, optimizer, train_loader)
            model.eval()
            seen = torch.zeros(2)
            with torch.inference_mode():
                for x, y in test_loader:
                    seen += torch.tensor([float((model(x).argmax(1) == y).sum()), len(y)])
            if distributed:
                dist.barrier()
                dist.all_reduce(seen)
        if distributed:
            dist.destroy_process_group()
    return torch.cat([weights(bare), bare[1].running_var, seen])  # type: ignore[index]


def small_gpt(block: Block, plain: bool) -> torch.Tensor:
    """The environment read by hand, functions by name, syncing on the last micro-batch only, and
    batches of one's own, seeded by the rank."""
    with block:
        ddp = int(os.environ.get("RANK", -1)) != -1 and not plain
        if ddp:
            init_process_group(backend="gloo")
            rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
        else:
            rank, world = 0, 1
        torch.manual_seed(1337)
        model: nn.Module = nn.Sequential(nn.Embedding(11, 8), nn.Linear(8, 11))
        text = torch.randint(0, 11, (200,), generator=torch.Generator().manual_seed(1))
        draws = torch.Generator().manual_seed(7)
        if ddp:
            model = DDP(model)
        bare = model.module if ddp else model
        optimizer = torch.optim.AdamW(bare.parameters(), lr=1e-2)
        for _ in range(5):
            for micro in range(2):
                if ddp:
                    model.require_backward_grad_sync = micro == 1  # type: ignore[assignment]
                starts = torch.randint(190, (6,), generator=draws)
                mine = [int(start) for start in starts[rank::world]]
                x = torch.stack([text[i : i + 8] for i in mine])
                y = torch.stack([text[i + 1 : i + 9] for i in mine])
                logits = model(x)
                loss = F.cross_entropy(logits.reshape(-1, 11), y.reshape(-1)) / 2
                loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 0.5)
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
        if ddp:
            destroy_process_group()
    return weights(bare)


class InOrder(Sampler[int]):
    """A library's own: every so manieth sample, padded."""

    def __init__(self, dataset: Any, num_replicas: int | None = None, rank: int | None = None):
        self.dataset = dataset
        self.num_replicas = dist.get_world_size() if num_replicas is None else num_replicas
        self.rank = dist.get_rank() if rank is None else rank
        self.num_samples = -(-len(dataset) // self.num_replicas)
        self.total_size = self.num_samples * self.num_replicas

    def __iter__(self) -> Any:
        order = list(range(len(self.dataset)))
        order += order[: self.total_size - len(order)]
        return iter(order[self.rank : self.total_size : self.num_replicas])

    def __len__(self) -> int:
        return self.num_samples


class WithLoss(nn.Module):
    """It returns its loss, of targets of which some are ignored, beside its outputs."""

    def __init__(self) -> None:
        super().__init__()
        self.net, self.unused = net(), nn.Linear(2, 2)

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> dict[str, torch.Tensor]:
        outputs = self.net(x)
        return {"loss": F.cross_entropy(outputs, y, ignore_index=0), "outputs": outputs}


def image_models(block: Block, plain: bool) -> torch.Tensor:
    """A batch sampler over the divided one, a sampler of the library's own, losses reduced for the
    log, and a wrapper that may have unused parameters."""
    with block:
        world = 1 if plain else int(os.environ["WORLD_SIZE"])
        if not plain:
            init_process_group("gloo", rank=int(os.environ["RANK"]), world_size=world)
        dataset = data(48)
        own = (1, 0) if plain else (world, dist.get_rank())
        sampler = DistributedSampler(dataset, *own, seed=3)
        model: nn.Module = WithLoss()
        loader = DataLoader(
            dataset, batch_sampler=BatchSampler(sampler, GLOBAL // world, drop_last=True)
        )
        optimizer = momentum(model)
        if not plain:
            model = DDP(model, broadcast_buffers=False, find_unused_parameters=True)
        bare = model if plain else model.module
        for epoch in range(2):
            sampler.set_epoch(epoch)
            for x, y in loader:
                loss = model(x, y)["loss"]
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                if not plain:
                    logged = loss.detach().clone()
                    dist.all_reduce(logged, op=dist.ReduceOp.SUM)
                    logged /= world
        seen = torch.zeros(1)
        with torch.no_grad():
            for x, _ in DataLoader(
                dataset, batch_size=GLOBAL // world, sampler=InOrder(dataset, *own)
            ):
                seen += len(x)
        if not plain:
            dist.all_reduce(seen)
    return torch.cat([weights(bare), seen])  # type: ignore[arg-type]


def one_wrapper_for_all_gpus(block: Block, _: bool) -> torch.Tensor:
    with block:
        model = nn.DataParallel(net())
        optimizer = momentum(model)
        train(model, optimizer, DataLoader(data(), batch_size=GLOBAL))
    return weights(model.module)


def everything_made_before_the_block(block: Block, _: bool) -> torch.Tensor:
    model = net()
    optimizer = momentum(model)
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.5)
    loader = DataLoader(data(), batch_size=GLOBAL)
    with block:
        for _ in range(2):
            train(model, optimizer, loader)
            schedule.step()
    return weights(model)


class Wrapping(torch.optim.Optimizer):
    """As libraries wrap an optimizer: of its class, and never initialised."""

    def __init__(self, optimizer: torch.optim.Optimizer) -> None:
        self.optimizer = optimizer

    @property
    def param_groups(self) -> Any:
        return self.optimizer.param_groups

    @param_groups.setter
    def param_groups(self, groups: Any) -> None:
        self.optimizer.param_groups = groups

    def zero_grad(self, set_to_none: bool = True) -> None:
        self.optimizer.zero_grad(set_to_none)

    def step(self, closure: Any = None) -> Any:
        return self.optimizer.step(closure)


def optimizer_wrapped_before_the_block(block: Block, _: bool) -> torch.Tensor:
    model = net()
    optimizer = Wrapping(momentum(model))
    with block:
        train(model, optimizer, DataLoader(data(), batch_size=GLOBAL))
    return weights(model)


def model_made_before_the_block(block: Block, _: bool) -> torch.Tensor:
    model = net()
    with block:
        optimizer = momentum(model)
        train(model, optimizer, DataLoader(data(), batch_size=GLOBAL))
    return weights(model)


def wrapped_in_the_block(block: Block, _: bool) -> torch.Tensor:
    features = net()
    with block:
        model = nn.Sequential(features, nn.Linear(CLASSES, CLASSES))
        train(model, momentum(model), DataLoader(data(), batch_size=GLOBAL))
    return weights(model)


def compiled_before_the_block(block: Block, _: bool) -> torch.Tensor:
    model = net()
    compiled = torch.compile(model, backend="eager")
    compiled(torch.randn(5, FEATURES, generator=torch.Generator().manual_seed(2)))
    with block:
        train(compiled, momentum(model), DataLoader(data(), batch_size=GLOBAL))
    return weights(model)


class OwnLoader(DataLoader[Any]):
    """A loader that does something to what it yields, once."""

    def __iter__(self) -> Any:
        for x, y in super().__iter__():
            yield x + 1, y


def loader_of_ones_own_made_before(block: Block, _: bool) -> torch.Tensor:
    loader = OwnLoader(data(), batch_size=GLOBAL)
    with block:
        model = net()
        optimizer = momentum(model)
        train(model, optimizer, loader)
    return weights(model)


def unused_in_the_block(block: Block, _: bool) -> torch.Tensor:
    """What the block does not use is as it was: trained after it, alone, on all the data."""
    model = net()
    optimizer = momentum(model)
    loader = DataLoader(data(), batch_size=GLOBAL)
    with block:
        train(other := net(), momentum(other), DataLoader(data(), batch_size=GLOBAL))
    train(model, optimizer, loader)
    return weights(model)


SCRIPTS: dict[str, Callable[[Block, bool], torch.Tensor]] = {
    script.__name__: script
    for script in (
        vision_reference, small_gpt, image_models, one_wrapper_for_all_gpus,
        everything_made_before_the_block, model_made_before_the_block, wrapped_in_the_block,
        compiled_before_the_block, loader_of_ones_own_made_before, unused_in_the_block,
        optimizer_wrapped_before_the_block,
    )
}  # fmt: skip


def wrong_group() -> None:
    init_process_group("gloo", rank=0, world_size=7)


def uneven_by_hand() -> None:
    with DDP(net()).join():
        pass


def sharded_by_hand() -> None:
    from torch.distributed.fsdp import FullyShardedDataParallel

    FullyShardedDataParallel(net())


def part_of_a_world() -> None:
    DataLoader(data(), batch_size=4, sampler=DistributedSampler(data(), 7, 0))


FAULTS: dict[str, Callable[[], None]] = {
    fault.__name__: fault
    for fault in (wrong_group, uneven_by_hand, sharded_by_hand, part_of_a_world)
}


def made_before_and_divided() -> str:
    """Under a strategy that has to see a model being made, and after `prepare`."""
    model = net()
    x, y = data().tensors
    with dream.strategy("local_sgd") as strategy:
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        try:
            train(model, optimizer, [(x, y)])
        except dream.Unsupported as error:
            strategy.prepare(model)
            train(model, optimizer, [(x, y)])
            return f"Unsupported: {error}"
    return "nothing was raised"


def wrapped_before_the_block() -> str:
    model = DDP(net())
    x, y = data().tensors
    with dream.strategy("mirrored"):
        try:
            train(model, momentum(model), [(x, y)])
        except dream.Unsupported as error:
            return f"Unsupported: {error}"
    return "nothing was raised"


def run_all(plain: bool) -> dict[str, Any]:
    torch.set_num_threads(1)
    results: dict[str, Any] = {}
    for name, script in SCRIPTS.items():
        torch.manual_seed(1)
        try:
            results[name] = script(
                nullcontext() if plain else dream.strategy("mirrored"), plain
            ).numpy()
        except Exception:
            results[name] = traceback.format_exc()
    for name, fault in {} if plain else FAULTS.items():
        try:
            with dream.strategy("mirrored"):
                fault()
            results[name] = "nothing was raised"
        except dream.DreamError as error:
            results[name] = f"{type(error).__name__}: {error}"
    if not plain:
        results["made_before_and_divided"] = made_before_and_divided()
        results["wrapped_before_the_block"] = wrapped_before_the_block()
    return results
