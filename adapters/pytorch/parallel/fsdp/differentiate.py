"""`torch.autograd.grad` by parameters that are sharded. Their graph has the gathered ones, which a
script never sees: so it is a backward pass, whose gradients are handed out."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple, final

import torch
from torch import nn

from dream._errors import Unsupported
from dream.adapters.pytorch.private import current_backward

_INSTEAD = "Call loss.backward() and read parameter.grad, or use 'mirrored'."


@final
class AskedGradients(NamedTuple):
    """What torch.autograd.grad is asked for, by torch's names."""

    grad_outputs: Any = None
    retain_graph: bool | None = None
    create_graph: bool = False
    only_inputs: bool = True
    allow_unused: bool | None = None
    is_grads_batched: bool = False
    materialize_grads: bool = False

    def gradient(self, wanted: torch.Tensor) -> torch.Tensor | None:
        """Return the gradient that a backward pass has left, or what is asked for in its place."""
        if wanted.grad is not None:
            return wanted.grad
        if self.materialize_grads:
            return torch.zeros_like(wanted)
        if not self.allow_unused:
            raise RuntimeError(
                "A parameter takes no part in the outputs that are differentiated. Received: one "
                f"of shape {tuple(wanted.shape)}. Pass allow_unused=True to have None for it."
            )
        return None


@final
class ShardGradients:
    """Differentiates by the sharded parameters of one strategy. trained: its parameters that are
    sharded. cut: whether several passes make one gradient."""

    def __init__(self, trained: Callable[[], Iterable[nn.Parameter]], *, cut: bool) -> None:
        self._trained, self._cut = trained, cut

    def concerns(self, wanted: Sequence[object]) -> bool:
        """Whether some of these are such parameters, and no backward pass runs."""
        if current_backward() != -1 or not any(isinstance(x, nn.Parameter) for x in wanted):
            return False
        own = {id(parameter) for parameter in self._trained()}
        return any(id(x) in own for x in wanted)

    def take(
        self, outputs: Any, wanted: Sequence[torch.Tensor], asked: AskedGradients
    ) -> tuple[torch.Tensor | None, ...]:
        """Return the global gradient by each, in shards as the parameter is.

        Raises:
            Unsupported: it is to be differentiated in turn, or batched, or is a part of an
                update's, or others than sharded parameters are among those that are wanted.
            RuntimeError: as torch's own, one of them takes no part in the outputs.
        """
        trained = [*self._trained()]
        own = {id(parameter) for parameter in trained}
        others = [tuple(x.shape) for x in wanted if id(x) not in own]
        for wrong, what in (
            (asked.create_graph, "create_graph=True, with parameters that are sharded"),
            (asked.is_grads_batched, "is_grads_batched=True, with parameters that are sharded"),
            (self._cut, "accumulate=, with parameters that are sharded"),
            (others, f"sharded parameters beside others, of shape {others[:1]}"),
        ):
            if wrong:
                raise Unsupported(
                    "torch.autograd.grad by sharded parameters is a backward pass that hands out "
                    f"its gradients. Received: {what}. {_INSTEAD}"
                )
        held = [parameter.grad for parameter in trained]
        for parameter in trained:
            parameter.grad = None
        try:
            torch.autograd.backward(outputs, asked.grad_outputs, asked.retain_graph)
            return tuple(asked.gradient(x) for x in wanted)
        finally:
            for parameter, gradient in zip(trained, held, strict=True):
                parameter.grad = gradient


def refuse_some(
    inputs: Any,
    now: Callable[[torch.Tensor], torch.Tensor],
    trained: Callable[[], Iterable[nn.Parameter]],
) -> None:
    """Raise for a backward pass by sharded parameters alone. now: the new one for an old."""
    if inputs is None:
        return
    wanted = [now(x) for x in ([inputs] if isinstance(inputs, torch.Tensor) else inputs)]
    own = {id(parameter) for parameter in trained()}
    if any(id(x) in own for x in wanted):
        raise Unsupported(
            "A backward pass comes to all of a model's sharded parameters. Received: "
            "backward(inputs=...) with some of them. Freeze the others before the model is called, "
            "by requires_grad_(False), or use 'mirrored'."
        )
