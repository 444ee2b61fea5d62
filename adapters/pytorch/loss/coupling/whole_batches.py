"""Batches that no loader of the block gave: they are whole on every rank, and to be alike there.

A script that draws its batches by a generator without a seed has others on each, as one that seeds
by the rank does. In a loop's first steps, and seldom later, the ranks compare them.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import final

import torch

from dream._log import Once
from dream.adapters.pytorch.data.digests import is_rounded, rough_contents_of
from dream.adapters.pytorch.loss.calls import TrainingCall
from dream.adapters.pytorch.loss.coupling.origins import leaves_of
from dream.adapters.pytorch.private import is_batched
from dream.collectives import Communicator

_DIFFER = (
    "a batch that comes from no loader of the block is another on each rank: they count as one, of "
    "the rows of all ranks, so a step is on as many times the rows as without dream. For what one "
    "device trains on, draw it alike on every rank, by a generator that is seeded alike, as "
    "np.random.default_rng(0) or random.Random(0); strategy.share(*tensors) then gives a rank its "
    "rows"
)


@final
class WholeBatches:
    """Has the ranks compare whole batches. told: whether they were found to differ."""

    def __init__(self, among: Communicator) -> None:
        self._among = among.unchecked()
        self._say = Once()
        self.told = False

    def note(self, call: TrainingCall, given: Iterable[object]) -> None:
        """A model is called in training, in a loop's first steps."""
        if call.share is None and self._among.world_size > 1 and not self.told:
            tensors = [x for x in leaves_of(given) if isinstance(x, torch.Tensor) and _is_plain(x)]
            call.whole = sum(map(rough_contents_of, tensors)) if tensors else None

    def settle(self, armed: Sequence[TrainingCall]) -> None:
        """Compare what calls were given, if all were on whole batches: every rank comes here."""
        figures = [call.whole for call in armed if call.share is None and call.whole is not None]
        if len(figures) < len(armed) or self.told or self._among.world_size == 1:
            return
        own = torch.tensor([len(figures), sum(figures)], dtype=torch.float64)
        most, least = self._among.all_reduce(torch.stack([own, -own]), "max").tolist()
        alike = most[0] == -least[0]  # else the ranks have made other calls, and are told so there
        self.told = alike and not is_rounded(most[1], -least[1])
        if self.told:
            self._say(_DIFFER)


def _is_plain(x: torch.Tensor) -> bool:
    """Whether it has numbers here, unlike a fake one, or one of a graph that is traced."""
    plain = type(x) in (torch.Tensor, torch.nn.Parameter) and x.layout == torch.strided
    return plain and not (x.is_nested or x.is_meta or is_batched(x))
