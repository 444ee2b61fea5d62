"""A loss scale for float16, whose small gradients are zero otherwise. One on all ranks: it follows
from the global gradient, which all of them have alike."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import wraps
from typing import Any, final

import torch
from torch import nn

from dream._errors import ConfigurationError, Unsupported
from dream._log import logger
from dream.adapters.pytorch import private
from dream.adapters.pytorch.private import to_local
from dream.adapters.pytorch.update.gradients import GradientMark, Spread
from dream.update.precision import GROWTH_INTERVAL, INITIAL_SCALE

Backward = Callable[..., None]


@final
class Scaling:
    """Backward starts from the scaled loss, and gradients are unscaled when it ends, so a loop sees
    none that is not. Those of half precision wait for the optimizer's step, in float32.

    scale: of the global mean loss; a power of two, by which nothing is rounded. A rank's own loss
    is a mean over fewer samples, so its gradients are larger, and its scale is smaller by that.
    called: whether a model of the strategy's was called since the last backward. parameters: all
    that may have gradients then. changed: told of what was changed in place.
    """

    def __init__(self, ranks: int, spread: Spread) -> None:
        self.scale = INITIAL_SCALE
        self._ranks = 1 << (ranks - 1).bit_length()
        self._spread = spread
        self.called: Callable[[], bool] = lambda: False
        self.parameters: Callable[[], Iterable[nn.Parameter]] = tuple
        self.changed: Callable[[], None] = lambda: None
        self._open = False
        self._good = 0
        self._judged = self._late = False
        self._half: dict[nn.Parameter, GradientMark] = {}

    @property
    def own(self) -> float:
        """The factor of this rank's loss."""
        return self.scale / self._ranks

    def state_dict(self) -> dict[str, float]:
        return {"scale": self.scale, "good": self._good}

    def load_state_dict(self, state: Mapping[str, float]) -> None:
        self.scale, self._good = float(state["scale"]), int(state["good"])

    def opened(self, run: Backward) -> Backward:
        """Return what stands for `torch.autograd.backward` until `close`."""
        self._open = True
        return self._scaling(run)

    def close(self) -> None:
        self._open = False

    def around(self, run: Backward) -> Backward:
        """Return what explicit steps call, in the block and after it."""
        return run if self._open else self._scaling(run)

    def backward(self, *args: Any) -> None:
        """`torch.autograd.backward` for explicit steps, in the block and after it."""
        self.around(torch.autograd.backward)(*args)

    def loop_calls(self) -> None:
        """A loop calls a model; after the block its backward will not be scaled."""
        self._late = not self._open

    def passes(self, parameters: Sequence[nn.Parameter]) -> bool:
        """Whether an optimizer may step on these; else its step is left out, and the scale
        halved. Gradients are global, so all ranks decide alike."""
        finite = self._spread.finite(parameters)
        if finite is None:
            return True
        first, self._judged = not self._judged, True
        if not finite:
            self._good = 0
            if first:
                self.scale /= 2
                logger.info(
                    "a gradient overflowed in float16: the step is skipped on all ranks, and the "
                    "loss scale is now %g", self.scale,
                )  # fmt: skip
        elif first:
            self._good += 1
            if self._good == GROWTH_INTERVAL:
                self._good, self.scale = 0, self.scale * 2
        return finite

    def check_untouched(self) -> None:
        """Refuse gradients that are not what the last scaled backward left."""
        if self._late:
            raise ConfigurationError(
                "A loss is scaled for float16 in the block only. Received: an optimizer's step "
                "after it. Keep the loop in the block, or use the step of strategy.train_step."
            )
        for parameter, left in self._half.items():
            if parameter.grad is not None and not left.stays(parameter.grad):
                raise ConfigurationError(
                    "A gradient in float16 is scaled until the optimizer's step, and was changed "
                    f"before it. Received: a parameter of shape {tuple(parameter.shape)}. Clip by "
                    "clip_norm= or clip_value= of dream.strategy."
                )
        self._half.clear()

    def _scaling(self, run: Backward) -> Backward:
        @wraps(run)
        def backward(
            tensors: Any,
            grad_tensors: Any = None,
            retain_graph: bool | None = None,
            create_graph: bool = False,
            **kwargs: Any,
        ) -> None:
            if not self.called():
                run(tensors, grad_tensors, retain_graph, create_graph, **kwargs)
                return
            if create_graph:
                raise Unsupported(
                    "A gradient of a gradient would be scaled twice. Received: create_graph=True "
                    "in float16. Use precision='bfloat16', which needs no loss scale."
                )
            begun = started(tensors, grad_tensors, self.own)
            with self.scaled():
                run(*begun, retain_graph, create_graph, **kwargs)

        return backward

    @contextmanager
    def scaled(self) -> Iterator[None]:
        """Inside, what gradients there are already are scaled like those to come."""
        self._judged = self._late = False
        parameters = [*self.parameters()]
        _multiply(parameters, self.own)
        try:
            yield
        finally:
            _multiply(parameters, 1.0 / self.own)
            self.changed()
            self._note(parameters)

    def renote(self) -> None:
        """Note them again: what changed them since is dream's own."""
        self._note([*self._half])

    def _note(self, parameters: list[nn.Parameter]) -> None:
        half = [p for p in parameters if p.grad is not None and _is_half(p)]
        self._half.update({p: GradientMark.of(p.grad) for p in half})


@torch.no_grad()
def _multiply(parameters: list[nn.Parameter], factor: float) -> None:
    gradients = [to_local(p.grad) for p in parameters if p.grad is not None and not _is_half(p)]
    if gradients:
        private.foreach_mul_(gradients, factor)


def _is_half(parameter: nn.Parameter) -> bool:
    return parameter.dtype in (torch.float16, torch.bfloat16)


def started(tensors: Any, given: Any, scale: float) -> tuple[list[Any], list[Any]]:
    """Return where backward starts, and with which gradients."""
    listed = [tensors] if isinstance(tensors, torch.Tensor) else list(tensors)
    if given is None or isinstance(given, torch.Tensor):
        given = [given] * len(listed)
    pairs = zip(listed, given, strict=True)
    return listed, [_times(tensor, gradient, scale) for tensor, gradient in pairs]


def _times(tensor: Any, gradient: Any, scale: float) -> Any:
    if gradient is not None:
        return gradient * scale
    one = isinstance(tensor, torch.Tensor) and tensor.numel() == 1
    return torch.full_like(tensor, scale) if one else None  # torch says what is wrong
