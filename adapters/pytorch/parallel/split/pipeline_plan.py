"""What a pipeline's options ask for, checked, and what its ranks share."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import distributed, nn
from torch.optim import Optimizer
from torch.utils.data import DataLoader

from dream._adapter import Plan, Step
from dream._errors import ConfigurationError, Unsupported
from dream._mesh import Mesh
from dream.adapters.pytorch import collectives
from dream.adapters.pytorch.parallel.split.inside import inside
from dream.adapters.pytorch.parallel.split.place import Place
from dream.adapters.pytorch.step import check_scalar
from dream.data.partition import split


def step_alone(model: nn.Module, loss: Callable[..., Any], optimizer: Optimizer) -> Step:
    """The step of a pipeline of one rank."""

    def step(*batch: Any) -> torch.Tensor:
        inputs, target = split(batch)
        optimizer.zero_grad(set_to_none=True)
        with inside():
            value = check_scalar(loss(model(*inputs), target))
        value.backward()
        optimizer.step()
        return value.detach()

    return step


def stages_of(plan: Plan, mesh: Mesh) -> int:
    """How many stages there are, checked against the ranks that they are dealt to."""
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


def sample_of(loader: DataLoader[Any], microbatches: int) -> tuple[Any, ...]:
    """The inputs of a microbatch: the first samples, whatever the loader's order is."""
    samples: Any = loader.dataset
    rows = max(1, min(len(samples), (loader.batch_size or microbatches) // microbatches))
    assert loader.collate_fn is not None
    return split(tuple(loader.collate_fn([samples[index] for index in range(rows)])))[0]


def group_of(place: Place) -> distributed.ProcessGroup:
    """The process group that activations travel in, between the ranks of one copy."""
    own: distributed.ProcessGroup | None = None
    for index in range(place.mesh.data):
        ranks = place.mesh.copy_of(index * place.mesh.model)
        group = distributed.new_group(ranks, timeout=collectives.late())
        own = group if place.rank in ranks else own
    assert own is not None
    return own


def refuse_trained(loss: Callable[..., Any]) -> None:
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
