"""What a checkpoint asks of a strategy in torch."""

from __future__ import annotations

from abc import ABC
from collections.abc import Callable, Mapping
from typing import Any

from torch import nn
from torch.optim import Optimizer

from dream.adapters.pytorch.optimizer import Training
from dream.checkpoint.replicas import Replicas
from dream.collectives import Communicator
from dream.update.update import UpdateOptions


class ShardedState(ABC):
    """How its models and optimizers lie over the ranks.

    world: all ranks. dealt: those that batches are dealt to. replicas: how many share a batch.
    stepping_alone: replicas that have each a state of their own; None where ranks are alike.
    writes: whether this process writes its part of a checkpoint.
    """

    world: Communicator
    dealt: Communicator
    replicas: int
    update_options: UpdateOptions
    training: Training
    stepping_alone: Replicas | None = None
    writes = True

    def reshard(self) -> None:
        """Have what a model's calls gathered be in parts again; replicas have none."""
        return

    def loading(self) -> None:  # noqa: B027
        """Raise where weights could not be written any more."""

    def loaded(self) -> None:  # noqa: B027
        """A checkpoint's weights were written to a model, on every rank."""

    def adopt(self, optimizer: Optimizer) -> None:  # noqa: B027
        """Have an optimizer step what this rank holds. Its chain has it already."""

    def owners(self, model: nn.Module) -> Mapping[str, int]:
        """Return by name the rank that writes a tensor of the model's state, for those that it
        alone has; on others they are on the meta device."""
        del model
        return {}

    def told_by_stages(self, own: Any) -> list[tuple[int | None, Any]]:
        """Return what the ranks that hold a model's stages tell, each with the rank that writes
        what it holds; None where every rank has all."""
        return [(None, own)]

    def count_updates(self, optimizer: Optimizer, updated: Callable[[], None]) -> None:
        """Call `updated` after each step of an optimizer, for as long as it lives."""
        optimizer.register_step_post_hook(lambda *_: updated())
