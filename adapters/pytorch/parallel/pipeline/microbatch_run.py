"""A batch on its way through a pipeline: its microbatches, their losses and outputs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, final

import torch

from dream._adapter import Loss
from dream._errors import ConfigurationError, Unsupported
from dream.adapters.pytorch.private import tree_leaves, tree_map
from dream.adapters.pytorch.train_step import check_scalar
from dream.pipeline.division import Microbatches

Weigh = Callable[[torch.Tensor, Any, int], torch.Tensor]
"""(loss, output, number) of a microbatch -> its part of the loss, to start backward from."""


def rows_of(batch: Any) -> int:
    """Count the samples of a batch: as many in each of its tensors, on every rank alike."""
    rows = {len(x) for x in tree_leaves(batch) if isinstance(x, torch.Tensor) and x.dim()}
    if len(rows) != 1:
        raise ConfigurationError(
            "A pipeline cuts each batch into microbatches along dim 0. Received: tensors of "
            f"{sorted(rows)} rows in one batch. Give every tensor a row for each sample."
        )
    return rows.pop()


def part_of(parts: Microbatches, value: Any, index: int) -> Any:
    """Return a microbatch's samples."""
    first, stop = parts.span(index)
    return tree_map(lambda x: x[first:stop] if _is_batch(x) else x, value)


@final
class MicrobatchRun:
    """A batch on its way through the stages. Every rank of a pipeline has the whole batch.

    inputs: the model's. target, loss, weigh: where it is trained; weigh makes of a microbatch's
    loss its part of the batch's. scale: what gradients are larger by.
    """

    def __init__(
        self,
        parts: Microbatches,
        inputs: Sequence[Any],
        target: Any = None,
        loss: Loss | None = None,
        weigh: Weigh | None = None,
        scale: float = 1.0,
    ) -> None:
        self.parts = parts
        self._inputs, self._target, self._loss = inputs, target, loss
        self._weigh, self._scale = weigh, scale
        self._losses: list[torch.Tensor] = []
        self._outputs: list[Any] = []

    def inputs(self, index: int) -> list[Any]:
        """Return the inputs of a microbatch, padded to its rows with samples of the batch."""
        return [self._padded(value, index) for value in self._inputs]

    def finish(self, index: int, output: Any) -> torch.Tensor:
        """Return what the last stage makes of a microbatch: its part of the loss, to start
        backward from; without a loss, the output is kept."""
        if self._loss is None or self._weigh is None:
            self._outputs.append(self._cut(output, index))
            return torch.zeros(())
        if self.parts.real(index) == 0:  # the mean over nothing is nan
            return nothing_of(output)
        own, target = self._cut(output, index), part_of(self.parts, self._target, index)
        part = self._weigh(_refuse_elsewhere(check_scalar(self._loss(own, target))), own, index)
        self._losses.append(part.detach().clone())
        return part if self._scale == 1.0 else part * self._scale

    @property
    def mean_loss(self) -> torch.Tensor:
        """Return the microbatches' losses, each times what it counts for, added up: shape (). On
        the last stage."""
        return torch.stack(self._losses).sum()

    @property
    def output(self) -> Any:
        """Return the model's output for the whole batch. On the last stage."""
        return _joined(self._outputs)

    def _padded(self, value: Any, index: int) -> Any:
        missing = self.parts.rows - self.parts.real(index)
        part = part_of(self.parts, value, index)
        if missing == 0:
            return part

        def pad(whole: Any, real: Any) -> Any:
            if not _is_batch(whole):
                return whole
            return torch.cat([real, whole[:1].expand(missing, *whole.shape[1:])])

        return tree_map(pad, value, part)

    def _cut(self, output: Any, index: int) -> Any:
        """Drop the padding from an output."""
        real, rows = self.parts.real(index), self.parts.rows
        if real == rows:
            return output

        def cut(x: Any) -> Any:
            if not isinstance(x, torch.Tensor):
                return x
            if x.dim() == 0 or len(x) != rows:
                raise Unsupported(
                    "The rows that fill up a short microbatch must be dropped from its output. "
                    f"Received: an output of shape {tuple(x.shape)} for {rows} rows. Choose a "
                    f"batch size that {self.parts.count} microbatches divide, and drop_last=True."
                )
            return x[:real]

        return tree_map(cut, output)


def _is_batch(x: Any) -> bool:
    return isinstance(x, torch.Tensor) and x.dim() > 0


def _refuse_elsewhere(loss: torch.Tensor) -> torch.Tensor:
    if loss.is_meta:
        raise Unsupported(
            "A pipeline's loss is computed on the last stage, which has no parameters of the "
            "others. Received: a loss that was taken of some. Give the optimizer weight_decay= "
            "for a penalty on them, or use 'sharded' or 'mirrored'."
        )
    return loss


def nothing_of(output: Any) -> torch.Tensor:
    """Make a loss of 0 that all gradients come from."""
    leaves = [x for x in tree_leaves(output) if isinstance(x, torch.Tensor) and x.requires_grad]
    return torch.stack([(leaf * 0.0).sum() for leaf in leaves]).sum()


def _joined(outputs: list[Any]) -> Any:
    """Join outputs of successive microbatches as one."""
    return tree_map(
        lambda *parts: torch.cat(parts) if isinstance(parts[0], torch.Tensor) else parts[0],
        *outputs,
    )
