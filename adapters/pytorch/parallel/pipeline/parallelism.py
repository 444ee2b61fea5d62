"""`split="pipeline"`: stages of layers along the ranks, microbatches through them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, final

import torch
from numpy.typing import NDArray
from torch import distributed, fx, nn
from torch.optim import Optimizer
from torch.utils.data import DataLoader

from dream._adapter import Loss, Metric, Plan, Step, Weight
from dream._errors import ConfigurationError, Unsupported
from dream._topology import Mesh
from dream.adapters.pytorch import collectives, devices, evaluate
from dream.adapters.pytorch.call_hook import CallHook, set_hook
from dream.adapters.pytorch.hooks import Hooks
from dream.adapters.pytorch.keras.entry import refuse_keras
from dream.adapters.pytorch.module import layout_of, start_as_rank_0
from dream.adapters.pytorch.parallel.base import HONOURED, Parallelism, Participants
from dream.adapters.pytorch.parallel.inner_calls import called_by_user, running_layers
from dream.adapters.pytorch.parallel.pipeline.microbatch_run import rows_of
from dream.adapters.pytorch.parallel.pipeline.model import (
    PipelineModel,
    refuse_layers,
)
from dream.adapters.pytorch.parallel.pipeline.schedule import PipelineSettings
from dream.adapters.pytorch.parallel.pipeline.stages import (
    StageCuts,
    StageParameters,
    balanced_stages,
    named_stages,
    parameter_costs,
    time_costs,
)
from dream.adapters.pytorch.parallel.pipeline.step import PipelinePasses
from dream.adapters.pytorch.parallel.sharding.gradients import SpreadGradients
from dream.adapters.pytorch.parallel.sharding.graph import traced_modules
from dream.adapters.pytorch.parallel.sharding.mesh_placement import (
    MeshPlacement,
    connect,
    mesh_of,
)
from dream.adapters.pytorch.parallel.sharding.saving import saving_wholes
from dream.adapters.pytorch.train_step import Cuts, MicroParts, plain_step
from dream.adapters.pytorch.update.recompute import How, recompute
from dream.data.partition import split
from dream.model_description.layout import check_same
from dream.pipeline.division import asked_microbatches, asked_stages
from dream.update.update import UpdateOptions


@final
class PipelineParallel(Parallelism):
    """Each rank holds the layers of its stages, and the step sends microbatches through all.

    Batches are dealt along the data axis: the ranks of one pipeline get the same share.
    """

    supports = {**HONOURED, "sync_batch_norm": (False,)}
    whole = False
    supports_for = "A pipeline"
    instead = "Its layers see microbatches, so there is no BatchNorm in it. Use 'mirrored'."

    def __init__(self, plan: Plan) -> None:
        refuse_chains(UpdateOptions.of(plan.options).recompute)
        super().__init__(plan)
        self._stages = count_stages(plan, self._placement.mesh)
        self._microbatches = asked_microbatches(plan.options, self._stages)
        self._alone = plan.cluster.alone
        self._group = None if self._alone else activation_group(self._placement)
        self._loader: DataLoader[Any] | None = None
        self._made: list[tuple[PipelineModel, StageParameters]] = []
        self.training.watch(lambda: False, self._trained)
        if self.training.updates is not None:
            self.training.updates.leave_to_step()

    def connect(self) -> Participants:
        device = devices.choose(self.plan)
        self._placement = own = connect(self.plan, mesh_of(self.plan))
        told_by = own.world if own.mesh.model > 1 else None
        spread = SpreadGradients(own.model, of_stages=True)
        return Participants(own.world, device, own.data, told_by, spread=spread)

    def subscribe(self, hooks: Hooks) -> None:
        hooks.made("module", RefusedTraining.take)
        hooks.wrap("save", saving_wholes)

    def expect(self, objects: Sequence[Any]) -> None:
        """Take the loader, on whose data layers are timed, then the models, whose stages an
        optimizer is to step."""
        loaders = [item for item in objects if isinstance(item, DataLoader)]
        self._loader = loaders[0] if loaders else self._loader
        for item in objects:
            if isinstance(item, nn.Module):
                refuse_keras(item, self.name)
                self.distribute(item)

    def distribute(self, module: nn.Module) -> nn.Module:
        if self._alone:
            _refuse_training(module.to(self.device))
        else:
            self._find(module)
        return module

    def _find(self, model: nn.Module) -> tuple[PipelineModel, StageParameters]:
        for made in self._made:
            if made[0].model is model:
                return made
        refuse_layers(model)
        check_same(self.world.all_gather_object(layout_of(model)))
        start_as_rank_0(model, self.world)
        model.to(self.device)
        stages = self._cut(model)
        if self.training.precision is not None:
            self.training.precision.cast(model)
        pipeline = PipelineModel(model, stages, self._settings())
        parts = StageParameters(model, pipeline.owners(), self._placement.model.rank)
        parts.drop_others()
        _refuse_training(model)
        if self.update_options.recompute is not True:  # which is each stage's business
            opened = traced_modules(model, stages.opened)
            recompute(model, self.update_options.recompute, torch.is_grad_enabled, opened=opened)
        set_hook(model, PipelineCall(pipeline))
        self._made.append((pipeline, parts))
        return self._made[-1]

    def _trained(self) -> list[nn.Parameter]:
        """Return what rounds leave gradients in."""
        return [parameter for _, parts in self._made for parameter in parts.parameters]

    def _cut(self, model: nn.Module) -> StageCuts:
        options = self.plan.options
        names = options["stages"]
        if isinstance(names, (list, tuple)):
            return named_stages(model, names)
        if options["balance"] == "parameters":
            return balanced_stages(model, self._stages, parameter_costs(model))
        if self._loader is None:
            raise ConfigurationError(
                "Layers are timed on data. Received: balance='time' and no loader. Call "
                "strategy.prepare(model, optimizer, data) with a DataLoader."
            )
        inputs = first_inputs(self._loader, self._microbatches)
        return balanced_stages(model, self._stages, time_costs(model, inputs, self.world))

    def _settings(self) -> PipelineSettings:
        schedule = self.plan.options["schedule"]
        assert isinstance(schedule, str)
        assert self._group is not None
        return PipelineSettings(
            self._placement.model, self._group, self.device, schedule, self._microbatches,
            self.training.precision, self.update_options.recompute,
        )  # fmt: skip

    def adopt(self, optimizer: Optimizer) -> None:
        if self._alone:
            return
        if not self._made:
            raise ConfigurationError(
                "An optimizer of a split model is prepared with it or after it. Received: an "
                f"{type(optimizer).__name__} and no model. Call strategy.prepare(model, optimizer)."
            )
        for _, parts in self._made:
            if parts.holds(optimizer):
                parts.filter(optimizer)
                return
        raise StageParameters.foreign(optimizer)

    def train_step(
        self, model: nn.Module, loss: Loss, optimizer: Optimizer, weight: Weight | None
    ) -> Step:
        refuse_trained_loss(loss)
        self.distribute(model)
        if self._alone:
            return step_alone(model, loss, optimizer)
        _, parts = self._find(model)
        parts.filter(optimizer)
        whole = super().train_step(model, loss, optimizer, weight)
        checked = False

        def step(*batch: Any) -> torch.Tensor:
            nonlocal checked
            if not checked:
                checked = True
                samples = self.shares.largest(batch) or rows_of(batch)
                check_batch(self.plan, samples // self.training.most)
            value: torch.Tensor = whole(*batch)
            return value

        return step

    def forward_backward(
        self, model: nn.Module, loss: Loss, weight: Weight | None
    ) -> PipelinePasses:
        pipeline, parts = self._find(model)
        return PipelinePasses(
            pipeline, parts, loss, weight, self.dealt, self.training.scaling, self.draws,
            strict=self.update_options.strict,
        )  # fmt: skip

    def cuts(self, weight: Weight | None) -> Cuts:
        if weight is None:
            return MicroParts(self.training.most, self.shares, None)
        return super().cuts(weight)

    def evaluate(
        self, model: nn.Module, data: Iterable[Any], metrics: Mapping[str, Metric]
    ) -> dict[str, float]:
        if self._alone:
            return super().evaluate(model, data, metrics)
        pipeline, _ = self._find(model)

        def predict(inputs: tuple[Any, ...]) -> Any:
            run = pipeline.predict(inputs, {})
            return run.output if pipeline.has_last else evaluate.ELSEWHERE

        return evaluate.evaluate(
            model, data, metrics, self.dealt, predict=predict, total=self.world
        )

    def weigh(self, loss: Any, count: float) -> Any:
        raise Unsupported(
            f"Under {self.name!r} the loss weight is set in the train step. Received: weigh(loss, "
            f"count={count!r}). Use strategy.train_step(model, loss, optimizer, weight=...)."
        )

    def loss_weight(self) -> float:
        return self.shares.weight(())

    def owners(self, model: nn.Module) -> Mapping[str, int]:
        stages = {} if self._alone else self._find(model)[1].owners
        return {name: self._placement.mesh.copy_of(0)[stage] for name, stage in stages.items()}

    def told_by_stages(self, own: Any) -> list[tuple[int | None, Any]]:
        if self._alone:
            return super().told_by_stages(own)
        told = self._placement.model.all_gather_object(own)
        return [*zip(self._placement.mesh.copy_of(0), told, strict=True)]

    def full_state(self, model: nn.Module) -> dict[str, NDArray[Any]]:
        for pipeline, parts in self._made:
            if pipeline.model is model:
                return parts.whole(self._placement.model)
        return super().full_state(model)


def _refuse_training(model: nn.Module) -> None:
    """Have the model's training calls refused."""
    for layer in model.modules():
        set_hook(layer, RefusedTraining(layer))


def step_alone(model: nn.Module, loss: Loss, optimizer: Optimizer) -> Step:
    """Make the step of a pipeline of one rank."""
    plain = plain_step(model, loss, optimizer)

    def step(*batch: Any) -> Any:
        with running_layers():
            return plain(*batch)

    return step


def count_stages(plan: Plan, mesh: Mesh) -> int:
    """Count the stages, checked against the ranks that they are dealt to."""
    asked, schedule = plan.options["stages"], plan.options["schedule"]
    looped = schedule == "interleaved"
    count = asked_stages(plan.options, mesh.model)
    fits = count % mesh.model == 0 and count // mesh.model > 1 if looped else count == mesh.model
    if not fits and not (mesh.size == 1 and asked is None):
        what = "several stages a rank, as many on each" if looped else "one stage a rank"
        raise ConfigurationError(
            f"The schedule {schedule!r} has {what}. Received: {count} stages, {mesh.model} ranks "
            "along the model axis. Change stages= or model=, or start "
            f"{mesh.data * count} ranks."
        )
    microbatches = plan.options["microbatches"]
    if isinstance(microbatches, int) and schedule == "1f1b" and microbatches < count:
        raise ConfigurationError(
            "The schedule '1f1b' needs a microbatch for each stage. Received: microbatches="
            f"{microbatches}, {count} stages. Use microbatches={count} or more, or 'gpipe'."
        )
    return count


def first_inputs(loader: DataLoader[Any], microbatches: int) -> tuple[Any, ...]:
    """Return the inputs of a microbatch: the first samples, whatever the loader's order is."""
    samples: Any = loader.dataset
    rows = max(1, min(len(samples), (loader.batch_size or microbatches) // microbatches))
    assert loader.collate_fn is not None
    return split(tuple(loader.collate_fn([samples[index] for index in range(rows)])))[0]


def activation_group(place: MeshPlacement) -> distributed.ProcessGroup:
    """Make the process group that activations travel in, between the ranks of one copy."""
    own: distributed.ProcessGroup | None = None
    for index in range(place.mesh.data):
        ranks = place.mesh.copy_of(index * place.mesh.model)
        group = distributed.new_group(ranks, timeout=collectives.late())
        own = group if place.rank in ranks else own
    assert own is not None
    return own


def refuse_trained_loss(loss: Loss) -> None:
    if isinstance(loss, nn.Module) and any(p.requires_grad for p in loss.parameters()):
        raise Unsupported(
            "A pipeline's loss is computed on the last stage, and cannot be trained beside it. "
            f"Received: {type(loss).__name__} with parameters. Make it a layer of the model, or "
            "use mirrored."
        )


def check_batch(plan: Plan, samples: int) -> None:
    """Refuse microbatches that the first batch cannot fill; a short last one may."""
    asked = plan.options["microbatches"]
    if isinstance(asked, int) and samples < asked:
        raise ConfigurationError(
            "Each microbatch needs a sample. Received: a batch with "
            f"{samples} samples for each copy of the model, microbatches={asked}. Use "
            f"microbatches={samples} or fewer, or a larger batch_size."
        )


def refuse_chains(how: How) -> None:
    if how == "sqrt":
        raise Unsupported(
            "A pipeline's stages are no chains to be cut in runs. Received: recompute='sqrt'. Pass "
            "recompute=True, which keeps of each stage what goes into it, or name layers."
        )


def _trains(module: nn.Module) -> bool:
    """Tell whether the user's own loop calls the module to train it."""
    return (
        torch.is_grad_enabled()
        and called_by_user()
        and any(parameter.requires_grad for parameter in module.parameters())
    )


def _refused(module: nn.Module) -> Unsupported:
    return Unsupported(
        "A pipeline needs strategy.train_step for training. Received: a call of "
        f"{type(module).__name__} with gradients on. Write model, optimizer, batches = "
        "strategy.prepare(model, optimizer, data); step = strategy.train_step(model, loss, "
        "optimizer); then step(*batch) for each batch. To predict, call it under torch.no_grad()."
    )


@final
class RefusedTraining(CallHook):
    """Takes the calls of a module made in the block, and of parts of one that is prepared."""

    @classmethod
    def take(cls, module: nn.Module) -> None:
        if not isinstance(module, fx.GraphModule):
            set_hook(module, cls(module))

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if _trains(self.module):
            raise _refused(self.module)
        return self.inner(*args, **kwargs)


@final
class PipelineCall(CallHook):
    """Takes the calls of a model in stages: to predict, on all its ranks together."""

    def __init__(self, pipeline: PipelineModel) -> None:
        super().__init__(pipeline.model)
        self._pipeline = pipeline

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if _trains(self.module):
            raise _refused(self.module)
        return self._pipeline.predict_everywhere(args, kwargs)
