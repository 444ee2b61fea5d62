"""Batch normalisations that no backward comes to, of models in training mode: a teacher's, a
generator's whose pictures are judged. They normalise by the batch, so by the rows of all ranks."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import TYPE_CHECKING, Any, final

import torch

from dream.adapters.pytorch import private
from dream.adapters.pytorch.update.batch_norm import check_several, statistics
from dream.data.partition import Share

if TYPE_CHECKING:
    from dream.adapters.pytorch.module import ModuleRegistry


@final
class NormsBeside:
    """Batch normalisations beside a block's modules, wherever they are called: copies of a model
    are no modules of it."""

    def __init__(self, registry: ModuleRegistry) -> None:
        self._registry, self._among = registry, registry.communicator.unchecked()

    def wrap(self, own: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
        """`torch.nn.functional.batch_norm`."""

        def over_all(
            input: torch.Tensor, running_mean: Any, running_var: Any, weight: Any, bias: Any,
            momentum: float, eps: float,
        ) -> torch.Tensor:  # fmt: skip
            share = self._share(input, weight, bias)
            if share is None:
                return own(input, running_mean, running_var, weight, bias, True, momentum, eps)
            mean, variance, count = statistics(input, self._among)
            samples = count / (self._among.world_size // share.parts)
            check_several(samples, input)
            if running_mean is not None:
                unbiased = variance * (samples / (samples - 1.0))
                for running, value in ((running_mean, mean), (running_var, unbiased)):
                    running.lerp_(value.to(running.dtype), momentum)
            normal, _, _ = torch.native_batch_norm(
                input, weight, bias, mean, variance, False, 0.0, eps
            )
            return normal

        apart = torch.compiler.disable(over_all)

        @wraps(own)
        def batch_norm(
            input: torch.Tensor, running_mean: Any, running_var: Any, weight: Any = None,
            bias: Any = None, training: bool = False, momentum: float = 0.1, eps: float = 1e-5,
        ) -> torch.Tensor:  # fmt: skip
            given = running_mean, running_var, weight, bias
            if not training:
                return own(input, *given, training, momentum, eps)
            run = apart if torch.compiler.is_compiling() else over_all
            return run(input, *given, momentum, eps)

        return batch_norm

    def _share(self, x: torch.Tensor, *learned: Any) -> Share | None:
        """That whose rows these are; None where others have none of them, or where a gradient will
        flow back."""
        if not self._registry.synchronises:
            return None
        if private.peek_transform() is not None or private.current_backward() != -1:
            return None
        if torch.is_grad_enabled() and any(
            isinstance(t, torch.Tensor) and t.requires_grad for t in (x, *learned)
        ):
            return None
        share = self._registry.shares.of((x,))
        parted = share is not None and share.parts > 1
        return share if parted and share is not None and x.shape[:1] == (share.count,) else None
