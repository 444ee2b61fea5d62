"""What the losses of a pipeline's microbatches count for, as their graphs say."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, cast, final

import torch

from dream._topology import Microbatches
from dream.adapters.pytorch.loss.calls import Bearer, TrainingCall
from dream.adapters.pytorch.loss.reading import say
from dream.adapters.pytorch.loss.terms import Term, terms_of
from dream.adapters.pytorch.parallel.pipeline.microbatch_run import Weigh, nothing_of
from dream.data.partition import Share

_NOBODY = cast(Bearer, None)
"""Nothing is sent with a microbatch's backward."""


def by_hand(weights: Sequence[float]) -> Weigh:
    """Weigh means over things that the user counts; over none of them it is nan."""

    def weigh(loss: torch.Tensor, output: Any, index: int) -> torch.Tensor:
        return loss * weights[index] if weights[index] else nothing_of(output)

    return weigh


@final
class GraphWeights:
    """Those of one batch on the last stage. Where things are counted (tokens, weights of classes),
    how many there are on all ranks is known once the last microbatch is through: until then each
    sample counts for one, and when the gradients are averaged they are divided by `counted`.

    share: of the batch. said: what has been said of losses.
    """

    def __init__(
        self, parts: Microbatches, share: Share, said: set[str], *, strict: bool = False
    ) -> None:
        self._parts, self._share, self._said, self._strict = parts, share, said, strict
        self._each = share.parts / share.total
        self.counted = 0.0

    def __call__(self, loss: torch.Tensor, output: Any, index: int) -> torch.Tensor:
        real = self._parts.real(index)
        call = TrainingCall(_NOBODY, Share(real, self._share.total, self._share.parts), ())
        call.mark(output)
        if loss.grad_fn is None:
            return loss * (real * self._each)
        terms = terms_of(loss, [call])
        alike = {id(term.count) for term in terms if term.kind == "count"}
        if len(alike) == 1 and all(term.kind == "count" for term in terms):
            count = float(terms[0].count or 0.0) * self._each
            self.counted += count
            return loss * count if count else nothing_of(output)  # the mean over nothing is nan
        if alike:
            for term in terms:
                if term.kind == "count":
                    term.kind, term.unknown = "mean", "several denominators in microbatches"
        say(terms, self._said, strict=self._strict)
        factors = [self._factor(term, real) for term in terms]
        if len({*factors}) == 1:
            return loss * factors[0]
        for term, factor in zip(terms, factors, strict=True):
            term.node.register_prehook(_times(factor))
        return loss

    def _factor(self, term: Term, real: int) -> float:
        return float(self._share.parts) if term.kind == "sum" else real * self._each


def _times(factor: float) -> Callable[[Any], Any]:
    def hook(gradients: tuple[Any, ...]) -> tuple[Any, ...]:
        return tuple(None if g is None else g * factor for g in gradients)

    return hook
