"""The adapter of torch: what every strategy does with a block, whatever its `Parallelism`."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping
from functools import wraps
from pathlib import Path
from typing import Any, final

import torch
from numpy.typing import NDArray
from torch import nn
from torch.optim import Optimizer
from torch.utils.data import DataLoader

from dream import cluster, stall
from dream._adapter import Adapter, Loss, Metric, Step, Weight
from dream._topology import Topology
from dream.adapters.pytorch.checkpoint.unsaved import UnsavedTraining
from dream.adapters.pytorch.data.reading.rows import rows
from dream.adapters.pytorch.errors import explain
from dream.adapters.pytorch.foreign.copies import Copies
from dream.adapters.pytorch.foreign.distributed import OwnDistribution
from dream.adapters.pytorch.foreign.made_before import MadeBefore
from dream.adapters.pytorch.foreign.metrics import Metrics
from dream.adapters.pytorch.foreign.scripting import Scripting
from dream.adapters.pytorch.foreign.tensorboard import EventFiles
from dream.adapters.pytorch.hooks import Hooks, write_files_once
from dream.adapters.pytorch.keras.entry import KerasEntry, forbid_fits, refuse_keras
from dream.adapters.pytorch.loss.read_numbers import ReadNumbers, is_global
from dream.adapters.pytorch.parallel.base import Parallelism
from dream.adapters.pytorch.update.weigh import count_of
from dream.checkpoint.checkpointer import Checkpointer
from dream.collectives import Communicator
from dream.data.partition import rows_of_all
from dream.stall.phases import Phase, PhaseRule


def _count_steps(optimizer: Optimizer) -> None:
    """Where no other rank has the steps looked at, `dream where` tells them all the same."""
    optimizer.register_step_pre_hook(lambda *_: stall.stepped())


@final
class TorchAdapter(Adapter):
    """One strategy in torch."""

    def __init__(self, parallelism: Parallelism) -> None:
        stall.phases_inside(phase_rules())
        self.parallelism = own = parallelism
        plan = own.plan
        self._topology = Topology.of(
            plan.cluster, num_replicas=own.replicas, device=str(own.device)
        )
        self._sharder = own.sharder()
        self._keras = _keras_of(own)
        self._hooks = Hooks()
        self._hooks.made_of("loader", self._sharder.made)
        self._hooks.made("loader", own.follow)
        self._hooks.made("module", own.modes.add)
        self._hooks.made("optimizer", own.modes.optimized)
        self._in_step = (
            plan.spec.update == "synchronous" and not plan.mixed and own.world.world_size > 1
        )
        own.modes.differentiates = not self._in_step
        self._earlier = MadeBefore(own, self._sharder)
        self._hooks.wrap("iter", self._earlier.wrap_iter)
        self._metrics = Metrics(own.dealt, own.shares, self._hooks)
        OwnDistribution(own).subscribe(self._hooks)
        Scripting(own, self._hooks).subscribe()
        write_files_once(self._hooks)
        if self._keras is None:
            self._hooks.making("module", self._refuse_keras)
        if own.world.world_size == 1 and cluster.started_by_dream():
            self._hooks.made("optimizer", _count_steps)
        if own.world.world_size > 1:
            Copies(self._hooks)
        if own.replicas > 1:
            ReadNumbers(own.shares, own.alike).subscribe(self._hooks)
        own.subscribe(self._hooks)
        own.training.subscribe(self._hooks)
        for place in ("backward", "grad"):
            self._hooks.wrap(place, own.modes.watching)
        self._unsaved = UnsavedTraining(loops=plan.spec.update != "asynchronous" and not plan.mixed)
        self._events = EventFiles(self._hooks.patches) if own.world.world_size > 1 else None

    @property
    def topology(self) -> Topology:
        return self._topology

    @property
    def communicator(self) -> Communicator:
        return self.parallelism.communicator

    def enter(self) -> None:
        self.parallelism.shares.threads.open()
        self._earlier.find()
        self._hooks.open()
        self._metrics.enter()
        if self._keras is None:
            forbid_fits(self._hooks.patches, self.parallelism.name)
        else:
            self._keras.enter()
        if self._in_step:
            self.parallelism.in_step.start()
            optimized = self.parallelism.world.all_gather_object(self._earlier.optimizes)
            self.parallelism.modes.differentiates |= any(optimized)
            self.parallelism.draws.open()
        self.parallelism.opened()
        self.parallelism.shares.held.open()
        self._unsaved.watch()
        if self._events is not None:
            self._events.enter()

    def exit(self) -> None:
        self.parallelism.shares.explain(sys.exception())
        self.parallelism.shares.threads.close()
        self.parallelism.shares.held.close()
        explain(sys.exception())
        self._unsaved.rest()
        if self._events is not None:
            self._events.exit()
        if self._keras is not None:
            self._keras.exit()
        if self._in_step:
            self.parallelism.draws.close()
        self.parallelism.training.exit()
        self.parallelism.closed()
        self._metrics.exit()
        self._hooks.close()
        self._earlier.leave()
        if sys.exception() is None:
            self.parallelism.hear_last()

    def prepare(self, *objects: Any) -> tuple[Any, ...]:
        self.parallelism.modes.differentiates = True
        self.parallelism.expect(objects)
        return tuple(self._prepare(item) for item in objects)

    def _prepare(self, item: Any) -> Any:
        self._refuse_keras(item)
        if isinstance(item, DataLoader):
            self._sharder.deal(item)
            self.parallelism.follow(item)
        elif self._keras is not None and (distributed := self._keras.prepare(item)) is not None:
            return distributed
        elif isinstance(item, Optimizer):
            self.parallelism.training.take(item)
            self.parallelism.adopt(item)
        elif isinstance(item, nn.Module):
            self._earlier.release(item)
            return self.parallelism.distribute(item)
        return item

    def train_step(
        self, model: nn.Module, loss: Loss, optimizer: Optimizer, weight: Weight | None
    ) -> Step:
        self._refuse_keras(model)
        self._earlier.release(model)
        training = self.parallelism.training
        if self._keras is not None and self.parallelism.keras_steps:
            step = self._keras.train_step(model, loss, optimizer, weight)
            if step is not None:
                if training.updates is not None:
                    training.updates.leave_to_step()
                return step
        training.take(optimizer)
        step = self.parallelism.train_step(model, loss, optimizer, weight)
        return self._told_of_all(step) if self._in_step else step

    def _told_of_all(self, step: Step) -> Step:
        @wraps(step)
        def told(*batch: Any) -> Any:
            return is_global(step(*batch), self.parallelism.world)

        return told

    def evaluate(
        self, model: nn.Module, data: Iterable[Any], metrics: Mapping[str, Metric]
    ) -> dict[str, float]:
        return self.parallelism.evaluate(model, data, metrics)

    def weigh(self, loss: Any, count: Any) -> Any:
        return self.parallelism.weigh(loss, count_of(count))

    def share(self, tensors: tuple[Any, ...]) -> tuple[Any, ...]:
        """Rows of this rank, marked with their share as those of a loader are."""
        rank, total = self.parallelism.dealt.rank, rows_of_all(tensors)
        held = self.parallelism.shares.current  # a loader's batch, which may be read far ahead
        if held is None or (held.total, held.micros) != (total, 1):
            held = self.parallelism.divided.now.share(total, rank)
        share = held
        own = tuple(_rows_of(x, share.cut) for x in tensors)
        self.parallelism.shares.share_out((x for x in own if isinstance(x, torch.Tensor)), share)
        return own

    def full_state(self, model: nn.Module) -> dict[str, NDArray[Any]]:
        return self.parallelism.full_state(model)

    def checkpointer(self, model: Any) -> Checkpointer:
        self._unsaved.known = True
        own = self.parallelism.checkpointer()
        self._refuse_keras(model)
        return (self._keras and self._keras.checkpointer(model)) or own

    def loss_weight(self) -> float | None:
        return self.parallelism.loss_weight()

    def _refuse_keras(self, item: Any) -> None:
        if self._keras is None:
            refuse_keras(item, self.parallelism.name)


def _rows_of(x: Any, cut: slice) -> Any:
    return rows(x, cut) if isinstance(x, torch.Tensor) else x[cut]


def _keras_of(own: Parallelism) -> KerasEntry | None:
    if own.keras_block is None:
        return None
    return KerasEntry(
        own.plan, own.world, own.keras_block, exchanged=own.exchanged, shares=own.shares,
        registry=own.registry_of_keras, modes=own.modes,
    )  # fmt: skip


_TORCH, _OWN = Path(torch.__file__).parent, Path(__file__).parent


def phase_rules() -> list[PhaseRule]:
    """Say what part of training a Python stack in torch's files is in."""
    calls = ("_wrapped_call_impl", "_call_impl", "__call__")
    return [
        _within(_TORCH, "utils/data/dataloader.py", Phase.INPUT, "__next__", "__iter__"),
        _within(_OWN, "data/", Phase.INPUT, "__next__", "iterate"),
        _within(_TORCH, "nn/modules/module.py", Phase.FORWARD, *calls),
        _within(_TORCH, "nn/functional.py", Phase.FORWARD),
        _within(_TORCH, "_tensor.py", Phase.BACKWARD, "backward"),
        _within(_TORCH, "autograd/__init__.py", Phase.BACKWARD, "backward", "grad"),
        _within(_TORCH, "optim/", Phase.OPTIMIZER),
        _within(_TORCH, "nn/utils/clip_grad.py", Phase.OPTIMIZER),
        _within(_TORCH, "_dynamo/convert_frame.py", Phase.COMPILING),
        _within(_TORCH, "_inductor/compile_fx.py", Phase.COMPILING),
        _within(_TORCH, "serialization.py", Phase.WRITING, "save"),
        _within(_TORCH, "serialization.py", Phase.LOADING, "load"),
        _within(_TORCH, "distributed/checkpoint/", Phase.WRITING, "save", "async_save"),
        _within(_TORCH, "distributed/checkpoint/", Phase.LOADING, "load"),
        _within(_TORCH, "distributed/distributed_c10d.py", Phase.COMMUNICATION),
        _within(_OWN, "parallel/pipeline/", Phase.STEP, "step", "forward_backward"),
        _within(_OWN, "evaluate.py", Phase.EVALUATION),
    ]


def _within(folder: Path, name: str, phase: Phase, *functions: str) -> PhaseRule:
    return PhaseRule(f"{folder}/{name}", phase, functions)
