"""`split="pipeline"`: stages of layers along the ranks, microbatches through them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, final

import torch
from numpy.typing import NDArray
from torch import nn
from torch.optim import Optimizer
from torch.utils.data import DataLoader

from dream._adapter import Metric, Plan, Step
from dream._batch import split
from dream._errors import ConfigurationError
from dream.adapters.pytorch import evaluation, randomness, state
from dream.adapters.pytorch.keras_refusal import forbid_fits, refuse_keras
from dream.adapters.pytorch.knobs.spread import Spread
from dream.adapters.pytorch.slot import set_slot
from dream.adapters.pytorch.split import gradients
from dream.adapters.pytorch.split.base import SplitAdapter
from dream.adapters.pytorch.split.feed import part_of, rows_of
from dream.adapters.pytorch.split.gradients import Staged
from dream.adapters.pytorch.split.parts import Parts, start_as_rank_0
from dream.adapters.pytorch.split.pipeline_calls import ByHand, Prepared, wrap_init
from dream.adapters.pytorch.split.pipeline_model import PipelineModel, Room, refuse_layers
from dream.adapters.pytorch.split.pipeline_plan import (
    check_batch,
    group_of,
    refuse_trained,
    sample_of,
    stages_of,
    step_alone,
)
from dream.adapters.pytorch.split.place import Place, connect, mesh_of
from dream.adapters.pytorch.split.saving import refusing_parts
from dream.adapters.pytorch.split.stages import Stages, evened, named, parameters_of
from dream.adapters.pytorch.split.telling import Telling
from dream.adapters.pytorch.split.timing import measured_on
from dream.adapters.pytorch.weighing import BatchWeight, count_of


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

    def _check_knobs(self) -> None:
        self._knobs.only({"clip_norm": ()}, "A pipeline")

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
        pipeline = PipelineModel(model, self._cut(model), self._room())
        parts = Parts(model, pipeline.owners(), self._place.model.rank)
        parts.drop_others()
        _own_step(model)
        set_slot(model, Prepared(pipeline))
        randomness.offset_by(self._topology.rank)
        self._made.append((pipeline, parts))
        return self._made[-1]

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
        return Room(self._place.model, self._group, self._device, schedule, self._microbatches)

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
        weigh = BatchWeight(self._place.data, self._shares.weight, weight)
        checked = False
        telling = Telling(pipeline.room.group, pipeline.last, self._device)

        def step(*batch: Any) -> torch.Tensor:
            inputs, target = split(batch)
            nonlocal checked
            if not checked:
                checked = True
                check_batch(self._plan, self._shares.largest(batch) or rows_of(batch))
            counts = self._counts(pipeline, batch, weight)
            share = weigh(batch)
            optimizer.zero_grad(set_to_none=True)
            value = torch.zeros((), dtype=torch.float64, device=self._device)
            if sum(counts) > 0.0:
                telling.expect()
                samples = pipeline.parts(rows_of(batch))
                feed = pipeline.train(samples, inputs, target, loss, counts)
                value = telling.tell(feed.mean_loss if pipeline.has_last else None)
            value = gradients.average(parts.parameters, value, share, self._place.data)
            optimizer.step()
            return value.to(torch.get_default_dtype())

        return step

    def _counts(
        self, pipeline: PipelineModel, batch: tuple[Any, ...], weight: Callable[..., Any] | None
    ) -> list[float]:
        """How many things the loss of each microbatch is the mean over."""
        samples = rows_of(batch)
        if samples == 0:
            return []
        parts = pipeline.parts(samples)
        if weight is None:
            return [float(parts.real(index)) for index in range(parts.count)]
        return [
            count_of(weight(*(part_of(parts, value, index) for value in batch)))
            if parts.real(index)
            else 0.0
            for index in range(parts.count)
        ]

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
