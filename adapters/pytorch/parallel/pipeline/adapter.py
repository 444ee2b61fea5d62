"""`split="pipeline"`: stages of layers along the ranks, microbatches through them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, final

import torch
from numpy.typing import NDArray
from torch import distributed, fx, nn
from torch.optim import Optimizer
from torch.utils.data import DataLoader

from dream._adapter import Metric, Plan, Step
from dream._errors import ConfigurationError, Unsupported
from dream._topology import Mesh
from dream.adapters.pytorch import collectives, devices, evaluate, tensors
from dream.adapters.pytorch.call_hook import CallHook, set_hook
from dream.adapters.pytorch.keras.entry import forbid_fits, refuse_keras
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
from dream.adapters.pytorch.parallel.sharding.adapter import HONOURED, ModelParallelAdapter
from dream.adapters.pytorch.parallel.sharding.gradients import SpreadGradients
from dream.adapters.pytorch.parallel.sharding.graph import traced_modules
from dream.adapters.pytorch.parallel.sharding.hooks import hook_modules, hook_save
from dream.adapters.pytorch.parallel.sharding.mesh_placement import MeshPlacement
from dream.adapters.pytorch.parallel.sharding.registry import start_as_rank_0
from dream.adapters.pytorch.train_step import check_scalar, cuts_of, step_of
from dream.adapters.pytorch.update.gradients import Spread
from dream.adapters.pytorch.update.recompute import How, recompute
from dream.data.partition import split

_HONOURED = {**HONOURED, "sync_batch_norm": (False,)}
_INSTEAD = "Its layers see microbatches, so there is no BatchNorm in it. Use 'mirrored'."


@final
class PipelineParallel(ModelParallelAdapter):
    """Each rank holds the layers of its stages, and the step sends microbatches through all."""

    def __init__(self, plan: Plan) -> None:
        super().__init__(plan)
        self._options = plan.options
        self._stages = count_stages(plan, self._placement.mesh)
        self._alone = plan.cluster.alone
        self._group = None if self._alone else activation_group(self._placement)
        self._loader: DataLoader[Any] | None = None
        self._made: list[tuple[PipelineModel, StageParameters]] = []
        self._training.watch(lambda: False, self._trained)
        if self._training.updates is not None:
            self._training.updates.leave_to_step()

    def _check_knobs(self) -> None:
        refuse_chains(self._knobs.recompute)
        self._knobs.only(_HONOURED, "A pipeline", _INSTEAD)

    def _spread(self) -> Spread:
        return SpreadGradients(self._placement.model, of_stages=True)

    def enter(self) -> None:
        super().enter()
        forbid_fits(self._patches, self._plan.spec.name)
        hook_save(self._patches)
        hook_modules(self._patches, self._plan.spec.name, RefusedTraining.take)

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
            _refuse_training(model.to(self._device))
        else:
            self._find(model)
        return model

    def _find(self, model: nn.Module) -> tuple[PipelineModel, StageParameters]:
        for made in self._made:
            if made[0].model is model:
                return made
        refuse_layers(model)
        start_as_rank_0(model, self._placement.world)
        model.to(self._device)
        stages = self._cut(model)
        if self._training.precision is not None:
            self._training.precision.cast(model)
        pipeline = PipelineModel(model, stages, self._settings())
        parts = StageParameters(model, pipeline.owners(), self._placement.model.rank)
        parts.drop_others()
        _refuse_training(model)
        if self._knobs.recompute is not True:  # which is each stage's business
            opened = traced_modules(model, stages.opened)
            recompute(model, self._knobs.recompute, torch.is_grad_enabled, opened=opened)
        set_hook(model, PipelineCall(pipeline))
        devices.offset_by(self._topology.rank)
        self._made.append((pipeline, parts))
        return self._made[-1]

    def _trained(self) -> list[nn.Parameter]:
        """Return what rounds leave gradients in."""
        return [parameter for _, parts in self._made for parameter in parts.parameters]

    def _cut(self, model: nn.Module) -> StageCuts:
        names = self._options["stages"]
        if isinstance(names, (list, tuple)):
            return named_stages(model, names)
        if self._options["balance"] == "parameters":
            return balanced_stages(model, self._stages, parameter_costs(model))
        if self._loader is None:
            raise ConfigurationError(
                "Layers are timed on data. Received: balance='time' and no loader. Call "
                "strategy.prepare(model, optimizer, data) with a DataLoader."
            )
        inputs = first_inputs(self._loader, self._microbatches)
        return balanced_stages(
            model, self._stages, time_costs(model, inputs, self._placement.world)
        )

    @property
    def _microbatches(self) -> int:
        asked = self._options["microbatches"] or 2 * self._stages
        assert isinstance(asked, int)
        return asked

    def _settings(self) -> PipelineSettings:
        schedule = self._options["schedule"]
        assert isinstance(schedule, str)
        assert self._group is not None
        return PipelineSettings(
            self._placement.model, self._group, self._device, schedule, self._microbatches,
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
        raise StageParameters.foreign(optimizer)

    def train_step(
        self,
        model: nn.Module,
        loss: Callable[..., Any],
        optimizer: Optimizer,
        weight: Callable[..., Any] | None,
    ) -> Step:
        refuse_keras(model, self._plan.spec.name)
        refuse_trained_loss(loss)
        if self._alone:
            return step_alone(self._take_model(model), loss, optimizer)
        pipeline, parts = self._find(model)
        parts.filter(optimizer)
        self._training.take(optimizer)
        training = self._training
        cut = cuts_of(training.most, self._placement.data, self._shares, weight)
        passes = PipelinePasses(
            pipeline, parts, loss, weight, self._placement.data, training.scaling
        )
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
            return evaluate.evaluate(model, data, metrics, self._dealt)
        pipeline, _ = self._find(model)

        def predict(inputs: tuple[Any, ...]) -> Any:
            run = pipeline.predict(inputs, {})
            return run.output if pipeline.has_last else evaluate.ELSEWHERE

        return evaluate.evaluate(
            model, data, metrics, self._dealt, predict=predict, total=self._placement.world
        )

    def full_state(self, model: nn.Module) -> dict[str, NDArray[Any]]:
        for pipeline, parts in self._made:
            if pipeline.model is model:
                return parts.whole(self._placement.model)
        return tensors.whole_state(model)


def _refuse_training(model: nn.Module) -> None:
    """Have the model's training calls refused."""
    for layer in model.modules():
        set_hook(layer, RefusedTraining(layer))


def step_alone(model: nn.Module, loss: Callable[..., Any], optimizer: Optimizer) -> Step:
    """Make the step of a pipeline of one rank."""

    def step(*batch: Any) -> torch.Tensor:
        inputs, target = split(batch)
        optimizer.zero_grad(set_to_none=True)
        with running_layers():
            value = check_scalar(loss(model(*inputs), target))
        value.backward()
        optimizer.step()
        return value.detach()

    return step


def count_stages(plan: Plan, mesh: Mesh) -> int:
    """Count the stages, checked against the ranks that they are dealt to."""
    asked, schedule = plan.options["stages"], plan.options["schedule"]
    looped = schedule == "interleaved"
    count = mesh.model * (2 if looped else 1)
    if isinstance(asked, int):
        count = asked
    elif isinstance(asked, (list, tuple)):
        count = len(asked) + 1
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


def refuse_trained_loss(loss: Callable[..., Any]) -> None:
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
            "A pipeline's stages are no chains to be cut in runs. Received: recompute='sqrt'. Say "
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
        f"A pipeline owns the training step. Received: a call of {type(module).__name__} with "
        "gradients on. Write model, optimizer, batches = strategy.prepare(model, optimizer, "
        "data); step = strategy.train_step(model, loss, optimizer); then step(*batch) for each "
        "batch. To predict, call it under torch.no_grad()."
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
