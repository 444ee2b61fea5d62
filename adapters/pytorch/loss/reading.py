"""Losses as all ranks read them together, and what is said of them, once each."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, final

import torch

from dream._errors import ConfigurationError, Unsupported
from dream._log import logger
from dream.adapters.pytorch.loss.calls import COUNTS, Bearer, TrainingCall
from dream.adapters.pytorch.loss.coupling.constants import ConstantLooks
from dream.adapters.pytorch.loss.coupling.lineage import Lineage
from dream.adapters.pytorch.loss.coupling.unconnected_terms import UnconnectedTerms
from dream.adapters.pytorch.loss.coupling.untraced import UntracedCalls
from dream.adapters.pytorch.loss.coupling.whole_batches import WholeBatches
from dream.adapters.pytorch.loss.divisors import OF_NONE, REFUSED
from dream.adapters.pytorch.loss.factors import Factors, Weighed
from dream.adapters.pytorch.loss.graph_search import bearers_of
from dream.adapters.pytorch.loss.lengths.own_lengths import OwnLengths
from dream.adapters.pytorch.loss.samples.no_terms import NO_GRAPH, stands_for_none
from dream.adapters.pytorch.loss.scaling import agree, in_parts
from dream.adapters.pytorch.loss.terms import Term, terms_of
from dream.collectives import Communicator
from dream.data.partition import Share

_CHANGES = (
    "A loss is a sum, divided by a number of Python's that is now alike on all ranks, as a "
    "constant, and now not, as a count: it counts as a constant. "
)
_DIVIDE = (
    "Divide by a tensor, as mask.sum() without its item(), or say strategy.weigh(loss, count)."
)
_WHOLE = (
    "a batch that comes from no loader of the block, or was read before there was an optimizer, is "
    "whole on every rank, which is exact unless it is made of a share that a loader gave, and "
    "computed by each of them; strategy.share(*tensors) gives a rank its rows"
)
_OF_KEPT = (
    "a loop trains on what no loader of the block hands out, while batches that one did are kept, "
    "as in a list: it counts as whole on every rank. If it is made of a kept batch, as by "
    "x.to(device) or x * 2, a rank has its share alone, and shares that are not equal count as "
    "much: another model is trained. Loop over the loader itself, or give what is made of a batch "
    "to the model where the loader hands it out"
)
NEAR = (
    "the parts of this loss count differently, and each is weighed by itself: the loss's value "
    "after backward is near the global one, the same on every rank"
)
_LATE = 64
"""The pass after which ranks look again, and after twice as many, and so on."""
_ASKS = 2.0**-16
"""What is told beside 1 for a divisor that was overtaken."""


@dataclass(slots=True)
class LossReading:
    """What backward is to know of its roots. bearers: modules that the gradient comes to. terms: of
    each root. weighed: all of them, with their factors. settled: whether the ranks have nothing to
    find of such losses any more. told: to the others, with the gradients."""

    bearers: list[Bearer]
    terms: list[list[Term]]
    weighed: Weighed
    settled: bool = True
    told: float = 0.0

    @property
    def parts(self) -> float:
        """What this rank tells of its loss's parts: whether they are several, whether things are
        counted; less than nothing of a loss that has no graph here."""
        weighed = self.weighed
        if not weighed.late and any(stands_for_none(term.node) for term in weighed.terms):
            return NO_GRAPH
        return float(len(weighed.terms) > 1 and in_parts(weighed)) + COUNTS * weighed.late


@final
class Reader:
    """Reads the losses of one strategy. strict: raise where one is not understood."""

    def __init__(self, among: Communicator, *, strict: bool) -> None:
        self._among, self._strict = among, strict
        self.lineage = Lineage(lambda: not self.settled)
        self._apart = UnconnectedTerms()
        self._looks = ConstantLooks(among, self.lineage, self._apart)
        self.untraced = UntracedCalls(among, self.lineage)
        self.whole, self._lengths = WholeBatches(among), OwnLengths(self.lineage.is_of_batch)
        self._factors = Factors(among)
        self.said: set[str] = set()
        self._passes, self._whole = 0, ""

    @property
    def settled(self) -> bool:
        """Whether the ranks have nothing to find of constants any more."""
        return self._looks.over

    @property
    def silent(self) -> bool:
        """Whether the ranks tell each other nothing as they read a loss that they know."""
        return self._looks.over and not self._factors.asks

    def begin(self, batch: object, share: Share) -> None:
        """A loader hands out a batch to train on."""
        if not self.settled:
            self._lengths.begin(share)
        self.lineage.begin(batch, share)

    def called(self, call: TrainingCall, given: Iterable[object], *, meets: bool) -> None:
        """A model is called in training, in a loop's first steps. meets: as of `UntracedCalls`."""
        self.whole.note(call, given)
        self.untraced.note(call, given, meets=meets)
        self.lineage.called(call, given)

    def passed(self) -> bool:
        """A backward pass has ended. Returns whether the ranks are to look again in the next ones:
        seldom, and on all alike, for what a loop has begun to do meanwhile."""
        self._passes += 1
        few = self._passes < _LATE or self._passes & (self._passes - 1)
        if few or self.untraced.off or not self.settled:
            return False
        self._looks.once_more()
        return True

    def read(
        self,
        roots: list[Any],
        armed: list[TrainingCall],
        fresh: Callable[[list[Bearer]], bool],
        *,
        cut: bool,
    ) -> LossReading:
        """fresh: whether no gradients of these modules are there yet that a late factor would
        multiply too. cut: this is one of an update's micro-batches."""
        if not self.settled:
            self.untraced.settle(armed)
            self.whole.settle(armed)
            self._lengths.look(armed)
        terms = [terms_of(root, armed, self._apart) for root in roots]
        bearers = bearers_of([root.grad_fn for root in roots], armed)
        if self._whole:
            self._tell_first(bearers, armed)
        listed = [term for each in terms for term in each]
        found, asks = self._looks.at(roots, listed, armed)
        asks = self.untraced.asks() or asks
        weighed = self._factors.weigh(listed, fresh=fresh(bearers), cut=cut, armed=armed)
        agree(weighed)
        if cut or self._among.world_size > 1:  # else the batch is whole: nothing divides it
            say(weighed.terms, self.said, strict=self._strict)
            say_coupled(found, self.said, strict=self._strict)
        told = float(weighed.overtaken) + _ASKS * asks
        return LossReading(bearers, terms, weighed, self.settled, told)

    def tell_whole(
        self, inputs: Sequence[object], why: str | None, *, kept: bool, first: bool
    ) -> None:
        """Say, once, that a batch is no loader's. why: it is one's, which gave all of it, and what
        is to be said of that. kept: whether there are some that were. first: whether this is its
        model's first call, which may be for shapes alone."""
        line = (_OF_KEPT if kept else _WHOLE) if why is None else why
        if not line or line in self.said or self._among.world_size == 1 or self.whole.told:
            return
        if not any(isinstance(x, torch.Tensor) for x in inputs):
            return
        if first:
            self._whole = self._whole or line
        else:
            tell_once(line, self.said)

    def _tell_first(self, bearers: Sequence[Bearer], armed: Sequence[TrainingCall]) -> None:
        """Say what was to be said of first calls, where there has been no later one on a loader's
        batch."""
        line, self._whole = self._whole, ""
        last = {call.bearer: call.share for call in armed if call.bearer in bearers}
        if None in last.values() and not self.whole.told:
            tell_once(line, self.said)

    def hear(self, told: float) -> None:
        """Be told, on every rank alike, the mean of what the ranks told."""
        overtaken, asks = divmod(round(told * self._among.world_size / _ASKS), round(1 / _ASKS))
        some = 0 < overtaken < self._among.world_size
        if overtaken and not self._factors.look_again(some=some) and _CHANGES not in self.said:
            self.said.add(_CHANGES)
            _tell(_CHANGES, _DIVIDE, strict=self._strict)
        if asks:
            self._looks.again()

    def parts(self, told: float, ends_in: str) -> float:
        """Be told, on every rank alike, the mean of what the ranks told of their losses' parts.
        ends_in: the last operation of this rank's.

        Raises:
            ConfigurationError: some ranks' losses are divided by a count, and others' are not; or
                no rank's has a graph.
        """
        ranks = self._among.world_size
        if told == NO_GRAPH:
            raise ConfigurationError(
                "A loss has no graph on any rank, so there is nothing to train by it. Received: a "
                "tensor without a grad_fn. Compute it from the model's output as it is: not under "
                "torch.no_grad(), and not from what detach() or item() gave."
            )
        counting, parts = divmod(max(round(told * ranks), 0), COUNTS)
        if 0 < counting < ranks:
            raise ConfigurationError(
                "The loss of one batch is of different kinds: on some ranks it is divided by a "
                "count of what the whole batch holds, on others it is not. Received: "
                f"{int(counting)} of {ranks} ranks that count; here it ends in "
                f"{ends_in}. Let the loss be one formula on every rank, or, where a "
                "rank's rows hold nothing that counts, `output.sum() * 0`."
            )
        return parts


def say(terms: Sequence[Term], said: set[str], *, strict: bool) -> None:
    """Say once what was not understood of a loss, or taken for granted."""
    for term in terms:
        if term.unknown and term.unknown not in said:
            said.add(term.unknown)
            what = (
                f"The loss counts as a mean over samples, since what {term.unknown} divides by "
                "cannot be told. "
            )
            advice = (
                "Weigh it by strategy.weigh(loss, count), give train_step(weight=...), or "
                "gather the outputs by strategy.communicator.all_gather."
            )
            _tell(what, advice, strict=strict)
        if term.noticed in REFUSED and strict:
            what, _, advice = term.noticed.rpartition(". ")
            _tell(f"The loss is {what}. ", f"{advice}.", strict=True)
        elif term.noticed:
            what = f"the loss is {term.noticed}"
            if term.noticed == OF_NONE and what not in said:
                said.add(what)
                logger.warning("%s", what)  # of this rank's rows, so of this rank
            tell_once(what, said)


def say_coupled(found: Iterable[str], said: set[str], *, strict: bool) -> None:
    """Say once which constants were computed from a share of the batch."""
    for each in found:
        if each not in said:
            said.add(each)
            _tell(
                f"{each[0].upper()}{each[1:]}: it couples the samples, and is another number than "
                "the whole batch's. ",
                "Compute it from the whole data, or from all ranks' rows, by "
                "strategy.communicator.all_gather; or divide the summed loss by the sum of its "
                "weights, as a tensor, or say strategy.weigh(loss, count).",
                strict=strict,
            )


def _tell(what: str, advice: str, *, strict: bool) -> None:
    if strict:
        raise Unsupported(f"{what}Received: strict=True. {advice}")
    logger.info("%s%s", what[0].lower() + what[1:], advice)


def tell_once(what: str, said: set[str]) -> None:
    if what not in said:
        said.add(what)
        logger.info("%s", what)
