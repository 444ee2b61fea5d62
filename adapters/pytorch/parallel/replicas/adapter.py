"""One process that drives several devices."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Collection, Iterable, Mapping
from contextlib import nullcontext
from functools import wraps
from typing import Any, final
from weakref import WeakSet

import torch
from numpy.typing import NDArray
from torch import fx, nn
from torch.optim import Optimizer
from torch.utils.data import DataLoader

from dream._adapter import Adapter, Metric, Plan, Step
from dream._topology import Topology
from dream.adapters.pytorch import evaluation, saving, state
from dream.adapters.pytorch.data.loader import Dealer
from dream.adapters.pytorch.data.shares import Shares
from dream.adapters.pytorch.keras.entry import forbid_fits, refuse_keras
from dream.adapters.pytorch.parallel.replicas.data_parallel import rows_of
from dream.adapters.pytorch.parallel.replicas.followed import Followed
from dream.adapters.pytorch.parallel.replicas.recomputing import Recomputing
from dream.adapters.pytorch.parallel.replicas.replicas import Parallel
from dream.adapters.pytorch.parallel.replicas.team import Team
from dream.adapters.pytorch.parallel.replicas.trained_parts import train
from dream.adapters.pytorch.passes import Batch, Passes, step_of
from dream.adapters.pytorch.patches import Patches
from dream.adapters.pytorch.slot import Slot, set_slot, slot_of, wrap_compile
from dream.adapters.pytorch.tensors import TorchTensors
from dream.adapters.pytorch.update.cut import cuts_of
from dream.adapters.pytorch.update.spread import Whole
from dream.adapters.pytorch.update.training import Training
from dream.adapters.pytorch.weighing import count_of
from dream.collectives import Communicator, Loop, Members
from dream.data.partition import split
from dream.update.update import Knobs

_HONOURED: Mapping[str, Collection[object]] = {
    "accumulate": (),
    "clip_norm": (),
    "clip_value": (),
    "precision": (),
    "recompute": (),
    "sync_batch_norm": (False,),
}
_TOGETHER: Mapping[str, Collection[object]] = {**_HONOURED, "sync_batch_norm": ()}
"""Where copies of a model may wait for one another in the middle of it."""
_INSTEAD = (
    "Where layers lie on devices, rows do not wait for one another (sync_batch_norm=). Use "
    "'mirrored', which takes all."
)


class OneProcess(Adapter):
    """Batches are whole as the loop sees them, and cut at each call for those that share them."""

    def __init__(self, plan: Plan) -> None:
        self._name = plan.spec.name
        self._knobs = Knobs.of(plan.options)
        self._team = self._gather(plan)
        honoured = _TOGETHER if self._team.meets else _HONOURED
        self._knobs.only(honoured, "One process that drives several devices", _INSTEAD)
        self._together = self._team.meets and self._knobs.synchronises
        self._topology = Topology.of(
            plan.cluster, num_replicas=self._team.size, device=str(self._team.first)
        )
        self._communicator = Communicator(Loop(), TorchTensors(), Members.all_of(plan.cluster))
        self._shares = Shares()
        self._training = Training(self._knobs, self._team.first.type, 1, Whole())
        self._followed = Followed(self._training, self._communicator, self._shares)
        self._training.watch(lambda: self._followed.called, self._gathering)
        self._dealer = Dealer(
            self._communicator, self._shares, plan.seed, micros=self._training.micros
        )
        self._recomputing = Recomputing(self._team, self._knobs.recompute, together=self._together)
        self._patches = Patches()
        self._settled: WeakSet[nn.Module] = WeakSet()

    @abstractmethod
    def _gather(self, plan: Plan) -> Team:
        """Who runs the parts of a batch."""

    @abstractmethod
    def _settle(self, model: nn.Module) -> None:
        """Put a model where it is to run. Called once for each."""

    @property
    def topology(self) -> Topology:
        return self._topology

    @property
    def communicator(self) -> Communicator:
        return self._communicator

    def enter(self) -> None:
        forbid_fits(self._patches, self._name)
        replace = self._patches.replace
        replace(DataLoader, "__init__", self._dealer.wrap_init(DataLoader.__init__))
        saving.enter(replace)
        replace(nn.Module, "__init__", self._wrap_init(nn.Module.__init__))
        replace(nn.Module, "compile", wrap_compile(nn.Module.compile))
        self._followed.enter(self._patches)
        self._training.enter(self._patches)

    def exit(self) -> None:
        self._training.exit()
        self._patches.restore()

    def prepare(self, *objects: Any) -> tuple[Any, ...]:
        for item in objects:
            refuse_keras(item, self._name)
            if isinstance(item, DataLoader):
                self._dealer.deal(item)
            elif isinstance(item, nn.Module):
                self._take(item)
            elif isinstance(item, Optimizer):
                self._training.take(item)
        return objects

    def train_step(
        self,
        model: nn.Module,
        loss: Callable[..., Any],
        optimizer: Optimizer,
        weight: Callable[..., Any] | None,
    ) -> Step:
        refuse_keras(model, self._name)
        self._take(model)
        self._training.take(optimizer)
        cut = cuts_of(self._training.most, self._communicator, self._shares, weight)
        passes = OnEach(
            self._team, model, loss, weight, self._training, self._recomputing,
            together=self._together,
        )  # fmt: skip
        return step_of(passes, optimizer, cut, self._training.updates)

    def evaluate(
        self, model: nn.Module, data: Iterable[Any], metrics: Mapping[str, Metric]
    ) -> dict[str, float]:
        self._take(model)
        return evaluation.evaluate(model, data, metrics, self._communicator)

    def weigh(self, loss: Any, count: Any) -> Any:
        return self._followed.weigh(loss, count_of(count))

    def full_state(self, model: nn.Module) -> dict[str, NDArray[Any]]:
        return state.whole(model)

    def _take(self, model: nn.Module) -> None:
        if model not in self._settled:
            self._settled.add(model)
            self._settle(model)
            if not isinstance(slot_of(model), Parallel):
                set_slot(model, self._parallel(model))

    def _parallel(self, module: nn.Module) -> Parallel:
        return Parallel(
            module, self._team, self._followed, self._recomputing, together=self._together
        )

    def _gathering(self) -> list[nn.Parameter]:
        """What backward passes leave gradients in."""
        taken = [parameter for model in self._settled for parameter in model.parameters()]
        return [*taken, *self._followed.gathering]

    def _wrap_init(self, init: Callable[..., None]) -> Callable[..., None]:
        @wraps(init)
        def wrapped(module: nn.Module, *args: Any, **kwargs: Any) -> None:
            refuse_keras(module, self._name)
            init(module, *args, **kwargs)
            if not isinstance(module, fx.GraphModule) and not isinstance(slot_of(module), Slot):
                set_slot(module, self._parallel(module))

        return wrapped


@final
class OnEach(Passes):
    """A part of a micro-batch on each device, and its loss too."""

    def __init__(
        self,
        team: Team,
        model: nn.Module,
        loss: Callable[..., Any],
        weight: Callable[..., Any] | None,
        training: Training,
        recomputing: Recomputing,
        *,
        together: bool,
    ) -> None:
        """weight: counts the things that a loss is the mean over. together: whether BatchNorm is
        to see all parts."""
        self._team, self._model, self._loss = team, model, loss
        self._weight, self._training, self._together = weight, training, together
        self._recomputing = recomputing
        self._value = torch.zeros(())

    def run(self, batch: Batch, weight: float, *, first: bool, last: bool) -> None:
        parts = self._team.scatter(split(batch))
        counts = [_count(part, self._weight) for part in parts]
        scaling, precision = self._training.scaling, self._training.precision
        with nullcontext() if scaling is None else scaling.scaled():
            scale = 1.0 if scaling is None else scaling.own
            value = train(
                self._team, self._model, self._loss, parts, counts, weight, scale, precision,
                self._recomputing, together=self._together,
            )  # fmt: skip
        self._value = value if first else self._value + value

    def told(self) -> torch.Tensor:
        return self._value


def _count(part: Any, weight: Callable[..., Any] | None) -> float:
    """How many things the loss of a part is the mean over."""
    inputs, target = part
    if weight is not None:
        return count_of(weight(*inputs, target))
    return float(rows_of(part) or 1)
