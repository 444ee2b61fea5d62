"""One process that drives several devices."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable, Mapping
from typing import Any, final

from torch import fx, nn
from torch.nn.parameter import Parameter

from dream._adapter import Loss, Metric, Plan, Weight
from dream.adapters.pytorch import devices
from dream.adapters.pytorch.call_hook import CallHook, ModuleSet, hook_of, set_hook, wrap_compile
from dream.adapters.pytorch.hooks import Hooks
from dream.adapters.pytorch.parallel.base import HONOURED, Parallelism, Participants, Values, alone
from dream.adapters.pytorch.parallel.replicas.calls import LoopTracker, ReplicatedCalls
from dream.adapters.pytorch.parallel.replicas.passes import OnEach
from dream.adapters.pytorch.parallel.replicas.train import (
    DeviceTeam,
    RecomputedCopies,
    Team,
)
from dream.adapters.pytorch.randomness.calls import patches
from dream.adapters.pytorch.randomness.current import current

_TOGETHER: Mapping[str, Values] = {n: v for n, v in HONOURED.items() if n != "strict"}
"""Where copies of a model may wait for one another in the middle of it."""
_HONOURED: Mapping[str, Values] = {**_TOGETHER, "sync_batch_norm": (False,)}


class OneProcess(Parallelism):
    """Batches are whole as the loop sees them, and cut at each call for those that share them."""

    supports_for = "One process that drives several devices"
    instead = (
        "Where layers lie on devices, rows do not wait for one another (sync_batch_norm=). Use "
        "'mirrored', which takes all."
    )

    meets = True

    def __init__(self, plan: Plan) -> None:
        self._team = self._gather(plan)
        self.supports = _TOGETHER if self._team.meets else _HONOURED
        super().__init__(plan)
        self._together = self._team.meets and self.update_options.synchronises
        self._followed = LoopTracker(self.training, self.world, self.shares)
        self.training.watch(lambda: self._followed.called, self._gathering)
        self._recomputing = RecomputedCopies(
            self._team, self.update_options.recompute, self.world, together=self._together,
            budget=self.update_options.memory_budget, calls=self.training.most,
        )  # fmt: skip
        self._settled = ModuleSet()

    @abstractmethod
    def _gather(self, plan: Plan) -> Team:
        """Who runs the parts of a batch."""

    @abstractmethod
    def _settle(self, model: nn.Module) -> None:
        """Put a model where it is to run. Called once for each."""

    def connect(self) -> Participants:
        return Participants(alone(self.plan), self._team.first, replicas=self._team.size)

    def subscribe(self, hooks: Hooks) -> None:
        hooks.made("module", self._add)
        hooks.wrap("compile", wrap_compile)
        if self.training.runs_models:
            hooks.wrap("backward", self._followed.weighed)

    def opened(self) -> None:
        current.begin()
        patches.put()

    def closed(self) -> None:
        patches.take_back()

    def meet(self, module: nn.Module) -> None:
        self._add(module)

    def distribute(self, module: nn.Module) -> nn.Module:
        if module not in self._settled:
            self._settled.add(module)
            self._settle(module)
            if not isinstance(hook_of(module), ReplicatedCalls):
                set_hook(module, self._parallel(module))
        return module

    def forward_backward(self, model: nn.Module, loss: Loss, weight: Weight | None) -> OnEach:
        calls = hook_of(self.distribute(model))
        assert isinstance(calls, ReplicatedCalls)
        return OnEach(calls, loss, weight, self.training)

    def evaluate(
        self, model: nn.Module, data: Iterable[Any], metrics: Mapping[str, Metric]
    ) -> dict[str, float]:
        self.distribute(model)
        return super().evaluate(model, data, metrics)

    def weigh(self, loss: Any, count: float) -> Any:
        return self._followed.weigh(loss, count)

    def _parallel(self, module: nn.Module) -> ReplicatedCalls:
        return ReplicatedCalls(
            module, self._team, self._followed, self._recomputing, together=self._together
        )

    def _gathering(self) -> list[Parameter]:
        """Return what backward passes leave gradients in."""
        taken = [parameter for model in self._settled for parameter in model.parameters()]
        return [*taken, *self._followed.gathering]

    def _add(self, module: nn.Module) -> None:
        """Take the calls of a module that was made in the block."""
        if not isinstance(module, fx.GraphModule) and not isinstance(hook_of(module), CallHook):
            set_hook(module, self._parallel(module))


@final
class DataParallel(OneProcess):
    """`data_parallel`: a replica on each device. The loss is computed on each where the step is
    dream's; in the user's own loop the outputs are gathered on the first."""

    chooses = True

    def _gather(self, plan: Plan) -> Team:
        return DeviceTeam(devices.several(plan))

    def _settle(self, model: nn.Module) -> None:
        model.to(self._team.first)
