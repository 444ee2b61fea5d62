"""`split="pipeline"`: stages of layers along the ranks, microbatches through them."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any, final

import torch
from numpy.typing import NDArray
from torch import nn
from torch.optim import Optimizer
from torch.utils.data import DataLoader

from dream._adapter import Metric, Plan, Step
from dream._errors import ConfigurationError
from dream.adapters.pytorch import evaluation, randomness, state
from dream.adapters.pytorch.keras.entry import forbid_fits, refuse_keras
from dream.adapters.pytorch.parallel.split.base import SplitAdapter
from dream.adapters.pytorch.parallel.split.computed import refuse_chains
from dream.adapters.pytorch.parallel.split.feed import rows_of
from dream.adapters.pytorch.parallel.split.gradients import Staged
from dream.adapters.pytorch.parallel.split.parts import Parts, start_as_rank_0
from dream.adapters.pytorch.parallel.split.pipeline_calls import ByHand, Prepared, wrap_init
from dream.adapters.pytorch.parallel.split.pipeline_model import PipelineModel, Room, refuse_layers
from dream.adapters.pytorch.parallel.split.pipeline_plan import (
    check_batch,
    group_of,
    refuse_trained,
    sample_of,
    stages_of,
    step_alone,
)
from dream.adapters.pytorch.parallel.split.place import Place, connect, mesh_of
from dream.adapters.pytorch.parallel.split.rounds import Rounds
from dream.adapters.pytorch.parallel.split.saving import refusing_parts
from dream.adapters.pytorch.parallel.split.stages import Stages, evened, named, parameters_of
from dream.adapters.pytorch.parallel.split.timing import measured_on
from dream.adapters.pytorch.parallel.split.tracing import looked_into
from dream.adapters.pytorch.passes import step_of
from dream.adapters.pytorch.slot import set_slot
from dream.adapters.pytorch.update.cut import cuts_of
from dream.adapters.pytorch.update.recompute import recompute
from dream.adapters.pytorch.update.spread import Spread

_HONOURED: Mapping[str, Collection[object]] = {
    "accumulate": (),
    "clip_norm": (),
    "clip_value": (),
    "precision": (),
    "recompute": (),
    "sync_batch_norm": (False,),
}
_INSTEAD = "Its layers see microbatches, so there is no BatchNorm in it. Use 'mirrored'."


@final
class Pipeline(SplitAdapter):
    """Each rank holds the layers of its stages, and the step sends microbatches through all."""

    def __init__(self, plan: Plan) -> None:
        super().__init__(plan)
        self._options = plan.options
        self._stages = stages_of(plan, self._place.mesh)
        self._alone = plan.cluster.alone
        self._group = None if self._alone else group_of(self._place)
        self._loader: DataLoader[Any] | None = None
        self._made: list[tuple[PipelineModel, Parts]] = []
        self._training.watch(lambda: False, self._gathering)
        if self._training.updates is not None:
            self._training.updates.leave_to_step()

    def _check_knobs(self) -> None:
        refuse_chains(self._knobs.recompute)
        self._knobs.only(_HONOURED, "A pipeline", _INSTEAD)

    def _spread(self) -> Spread:
        return Staged(self._place.model)

    def _connect(self, plan: Plan) -> Place:
        return connect(plan, mesh_of(plan))

    def enter(self) -> None:
        super().enter()
        forbid_fits(self._patches, self._plan.spec.name)
        self._patches.replace(torch, "save", refusing_parts(torch.save))
        init = wrap_init(nn.Module.__init__, self._plan.spec.name)
        self._patches.replace(nn.Module, "__init__", init)

    def prepare(self, *objects: Any) -> tuple[Any, ...]:
        loaders = [item for item in objects if isinstance(item, DataLoader)]
        self._loader = loaders[0] if loaders else self._loader
        for item in objects:
            refuse_keras(item, self._plan.spec.name)
            if isinstance(item, nn.Module):
                self._take_model(item)
        return super().prepare(*objects)

    def _take_model(self, model: nn.Module) -> nn.Module:
        if self._alone:
            _own_step(model.to(self._device))
        else:
            self._find(model)
        return model

    def _find(self, model: nn.Module) -> tuple[PipelineModel, Parts]:
        for made in self._made:
            if made[0].model is model:
                return made
        refuse_layers(model)
        start_as_rank_0(model, self._place.world)
        model.to(self._device)
        stages = self._cut(model)
        if self._training.precision is not None:
            self._training.precision.cast(model)
        pipeline = PipelineModel(model, stages, self._room())
        parts = Parts(model, pipeline.owners(), self._place.model.rank)
        parts.drop_others()
        _own_step(model)
        if self._knobs.recompute is not True:  # which is each stage's business
            opened = looked_into(model, stages.opened)
            recompute(model, self._knobs.recompute, torch.is_grad_enabled, opened=opened)
        set_slot(model, Prepared(pipeline))
        randomness.offset_by(self._topology.rank)
        self._made.append((pipeline, parts))
        return self._made[-1]

    def _gathering(self) -> list[nn.Parameter]:
        """What rounds leave gradients in."""
        return [parameter for _, parts in self._made for parameter in parts.parameters]

    def _cut(self, model: nn.Module) -> Stages:
        names = self._options["stages"]
        if isinstance(names, (list, tuple)):
            return named(model, names)
        if self._options["balance"] == "parameters":
            return evened(model, self._stages, parameters_of(model))
        if self._loader is None:
            raise ConfigurationError(
                "Layers are timed on data. Received: balance='time' and no loader. Call "
                "strategy.prepare(model, optimizer, data) with a DataLoader."
            )
        inputs = sample_of(self._loader, self._microbatches)
        return evened(model, self._stages, measured_on(model, inputs, self._place.world))

    @property
    def _microbatches(self) -> int:
        asked = self._options["microbatches"] or 2 * self._stages
        assert isinstance(asked, int)
        return asked

    def _room(self) -> Room:
        schedule = self._options["schedule"]
        assert isinstance(schedule, str)
        assert self._group is not None
        return Room(
            self._place.model, self._group, self._device, schedule, self._microbatches,
            self._training.precision, self._knobs.recompute,
        )  # fmt: skip

    def _take_optimizer(self, optimizer: Optimizer) -> Optimizer:
        if self._alone:
            return optimizer
        if not self._made:
            raise ConfigurationError(
                "An optimizer of a split model is prepared with it or after it. Received: an "
                f"{type(optimizer).__name__} and no model. Call strategy.prepare(model, optimizer)."
            )
        own = {id(p) for group in optimizer.param_groups for p in group["params"]}
        for _, parts in self._made:
            if parts.holds(own):
                parts.filter(optimizer)
                return optimizer
        raise Parts.foreign(optimizer)

    def train_step(
        self,
        model: nn.Module,
        loss: Callable[..., Any],
        optimizer: Optimizer,
        weight: Callable[..., Any] | None,
    ) -> Step:
        refuse_keras(model, self._plan.spec.name)
        refuse_trained(loss)
        if self._alone:
            return step_alone(self._take_model(model), loss, optimizer)
        pipeline, parts = self._find(model)
        parts.filter(optimizer)
        self._training.take(optimizer)
        training = self._training
        cut = cuts_of(training.most, self._place.data, self._shares, weight)
        passes = Rounds(pipeline, parts, loss, weight, self._place.data, training.scaling)
        whole = step_of(passes, optimizer, cut, training.updates)
        checked = False

        def step(*batch: Any) -> torch.Tensor:
            nonlocal checked
            if not checked:
                checked = True
                samples = self._shares.largest(batch) or rows_of(batch)
                check_batch(self._plan, samples // training.most)
            value: torch.Tensor = whole(*batch)
            return value

        return step

    def evaluate(
        self, model: nn.Module, data: Iterable[Any], metrics: Mapping[str, Metric]
    ) -> dict[str, float]:
        if self._alone:
            return evaluation.evaluate(model, data, metrics, self._dealt)
        pipeline, _ = self._find(model)

        def predict(inputs: tuple[Any, ...]) -> Any:
            feed = pipeline.predict(inputs, {})
            return feed.output if pipeline.has_last else evaluation.ELSEWHERE

        return evaluation.evaluate(
            model, data, metrics, self._dealt, predict=predict, total=self._place.world
        )

    def full_state(self, model: nn.Module) -> dict[str, NDArray[Any]]:
        for pipeline, parts in self._made:
            if pipeline.model is model:
                return parts.whole(self._place.model)
        return state.whole(model)


def _own_step(model: nn.Module) -> None:
    """Have the model's training calls refused."""
    for layer in model.modules():
        set_slot(layer, ByHand(layer))
