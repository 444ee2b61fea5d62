"""Backward passes that leave the gradient of the loss over the global batch, and its value.

What it needs of a strategy: modules that are `Bearer`s, which say of each training call

    call = backward.called(bearer, share, args, kwargs)   # before the forward pass
    call.mark(output)                                      # after it

and `hooks.wrap("backward", backward.wrap)`. The strategy averages gradients over the ranks that
share batches, unweighed. Losses are weighed where backward starts.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from functools import wraps
from typing import Any, final

import torch

from dream._errors import Unsupported
from dream._log import logger
from dream.adapters.pytorch import private
from dream.adapters.pytorch.hooks import BackwardLent
from dream.adapters.pytorch.loss.calls import Bearer, Call
from dream.adapters.pytorch.loss.factors import Factor, Factors, Weighed, late_factor
from dream.adapters.pytorch.loss.reach import bearers_of
from dream.adapters.pytorch.loss.terms import Term, count_by_hand, terms_of
from dream.adapters.pytorch.private import be_whole, recomputing, to_local, to_whole
from dream.adapters.pytorch.update.accumulation import Updates
from dream.collectives import Communicator
from dream.data.partition import Share

Run = Callable[..., None]
_NEAR = (
    "the parts of this loss count differently: its gradient is exact, and its value after backward "
    "is near the global one, the same on every rank"
)
_WHOLE = (
    "a batch that comes from no loader of the block is whole on every rank, which is exact, and "
    "computed by each of them; strategy.share(*tensors) gives a rank its rows"
)
_CALLS = 64
"""Calls of one module that are remembered until its backward."""
SIZE = 4
"""Numbers in a message: the loss, what was counted beyond what was expected, whether the loss's
parts count differently, and one to spare."""
VALUE, EXTRA, PARTS = 0, 1, 2


@final
class WeighedBackward:
    """The backward passes of one strategy.

    among: the ranks that share batches. updates: where several micro-batches make one update.
    strict: raise where a loss is not understood. lent: for modules that are trained after their
    block. within: what wraps the passes themselves. installed: whether the block is open, and
    `torch.autograd.backward` wrapped.
    """

    def __init__(
        self,
        among: Communicator,
        updates: Updates | None = None,
        *,
        strict: bool = False,
        lent: BackwardLent | None = None,
        within: Callable[[Run], Run] = lambda run: run,
    ) -> None:
        self._factors = Factors(among)
        self._among, self._updates, self._strict = among, updates, strict
        self._calls: dict[Bearer, deque[Call]] = {}
        self._lent, self._within = lent, within
        self.installed = False
        self._said: set[str] = set()

    def called(
        self, bearer: Bearer, share: Share | None, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Call:
        """A distributed module is called in training. share: of its inputs' batch."""
        call = Call.of(bearer, share, args, kwargs)
        if bearer not in self._calls or not bearer.waits:
            self._calls[bearer] = deque(maxlen=_CALLS)
        self._calls[bearer].append(call)
        return call

    def lend(self) -> None:
        """A loop calls a module: its backward is weighed after the block too."""
        if not self.installed and self._lent is not None:
            self._lent.lend(self.wrap)

    def tell_whole(self, inputs: Sequence[object]) -> None:
        """Say, once, that a batch is no loader's."""
        if self._among.world_size > 1 and any(isinstance(x, torch.Tensor) for x in inputs):
            _tell(_WHOLE, self._said)

    def around(self, run: Run) -> Run:
        """What an explicit step calls: `run`, weighed unless it is already."""
        return run if self.installed else self.wrap(run)

    def weigh(self, loss: torch.Tensor, count: float) -> torch.Tensor:
        """`loss`, which the user says is a mean over `count` things here."""
        weighed = loss * 1.0
        if weighed.grad_fn is not None:
            count_by_hand(weighed, count)
        return weighed

    def wrap(self, run: Run) -> Run:
        """`torch.autograd.backward` that weighs what it starts from."""
        run = self._within(run)

        @wraps(run)
        def backward(
            tensors: Any,
            grad_tensors: Any = None,
            retain_graph: bool | None = None,
            create_graph: bool = False,
            grad_variables: Any = None,
            inputs: Any = None,
        ) -> None:
            given = grad_tensors if grad_variables is None else grad_variables
            roots = [tensors] if isinstance(tensors, torch.Tensor) else list(tensors)
            if not self._calls or recomputing() or not all(map(_starts, roots)):
                run(tensors, given, retain_graph, create_graph, inputs=inputs)
                return
            gradients = [given] if given is None or isinstance(given, torch.Tensor) else list(given)
            gradients = gradients * len(roots) if gradients == [None] else gradients
            keep = {"retain_graph": retain_graph, "create_graph": create_graph}
            self._start(run, roots, gradients, keep, inputs)

        return backward

    def _start(
        self, run: Run, roots: list[Any], gradients: list[Any], keep: dict[str, Any], inputs: Any
    ) -> None:
        armed = [c for bearer, calls in self._calls.items() if bearer.waits for c in calls]
        if len(gradients) != len(roots) or not armed:
            run(roots, gradients, inputs=inputs, **keep)  # torch says what is wrong
            return
        read = [terms_of(root, armed) for root in roots]
        bearers = bearers_of([root.grad_fn for root in roots], armed)
        terms = [term for each in read for term in each]
        completes = all(bearer.completes for bearer in bearers)
        cut = self._updates is not None
        weighed = self._factors.weigh(terms, fresh=not _begun(bearers), cut=cut)
        say(weighed.terms, self._said, strict=self._strict)
        handles = _stops(weighed)
        starts, given = [*roots], [*gradients]
        at = 0
        values: list[Factor] = []
        for index, (root, each) in enumerate(zip(roots, read, strict=True)):
            own = weighed.factors[at : at + len(each)]
            at += len(each)
            given[index], more = _scaled(root, gradients[index], each, own)
            handles += more
            values.append(_value(root, each, own))
        message = self._message(roots[0], values, weighed)
        if inputs is not None:
            inputs = [inputs] if isinstance(inputs, torch.Tensor) else list(inputs)
        for bearer in bearers:
            sent = bearer.send(message)
            if sent is not None:
                starts.append(sent[0])
                given.append(sent[1])
                inputs = None if inputs is None else [*inputs, sent[0]]
        try:
            run(starts, given, inputs=inputs, **keep)
            for bearer in bearers if completes else ():
                bearer.finish(run)
        finally:
            for handle in handles:
                handle.remove()
            self._calls = {b: calls for b, calls in self._calls.items() if b.waits}
            if self._lent is not None and not self._calls:
                self._lent.give_back()
        if bearers and completes:
            self._finish(roots, bearers, weighed, keep)

    def _message(
        self, like: torch.Tensor, values: Sequence[Factor], weighed: Weighed
    ) -> torch.Tensor:
        dtype = torch.float64 if like.dtype == torch.float64 else torch.float32
        value = values[0] if len(values) == 1 else 0.0
        sent = weighed.sent if weighed.late else 0.0
        parts = float(_in_parts(weighed))
        if like.device.type == "cpu":  # nothing is waited for
            return torch.tensor([float(value), float(sent), parts, 0.0], dtype=dtype)
        message = torch.zeros(SIZE, dtype=dtype, device=like.device)
        message[VALUE], message[EXTRA], message[PARTS] = value, sent, parts
        return message

    @torch.no_grad()
    def _finish(
        self, roots: list[Any], bearers: list[Bearer], weighed: Weighed, keep: dict[str, Any]
    ) -> None:
        """Backward has ended, and the message is there."""
        received = bearers[0].received()
        message: Any = received if received.is_cuda else received.tolist()
        late: Factor = 1.0
        if weighed.late:
            late = late_factor(weighed, message[EXTRA] * self._among.world_size)
            if isinstance(late, torch.Tensor) or late != 1.0:
                _multiply(bearers, late)
                if self._updates is not None:
                    self._updates.held.renote()
        if len(roots) != 1 or roots[0].numel() != 1 or _kept(roots[0], keep):
            return
        if len(weighed.terms) > 1 and not received.is_cuda and message[PARTS]:
            _tell(_NEAR, self._said)
        value = message[VALUE]
        if isinstance(late, torch.Tensor) or late != 1.0:
            value = value * late
        told = to_local(roots[0]).data
        if isinstance(value, torch.Tensor):
            told.copy_(value)
        else:
            told.fill_(value)
        be_whole(roots[0])


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
            if strict:
                raise Unsupported(f"{what}Received: strict=True. {advice}")
            logger.info("%s%s", what[0].lower() + what[1:], advice)
        if term.noticed:
            _tell(f"the loss is a sum, {term.noticed}", said)


def _tell(what: str, said: set[str]) -> None:
    if what not in said:
        said.add(what)
        logger.info("%s", what)


def _multiply(bearers: list[Bearer], factor: Factor) -> None:
    """What backward left in all of their gradients."""
    trained = (p for bearer in bearers for p in bearer.trained)
    gradients = [to_local(p.grad) for p in trained if p.grad is not None]
    if gradients:
        private.foreach_mul_(gradients, factor)


def _starts(root: Any) -> bool:
    return isinstance(root, torch.Tensor) and root.grad_fn is not None


def _begun(bearers: list[Bearer]) -> bool:
    """Whether there are gradients that this backward adds to."""
    return any(p.grad is not None for bearer in bearers for p in bearer.trained)


def _kept(root: torch.Tensor, keep: dict[str, Any]) -> bool:
    """Whether a further backward would use the root's own value."""
    return bool(keep["retain_graph"] or keep["create_graph"]) and (
        private.saved(root.grad_fn, "result") is not None
    )


def _scaled(
    root: torch.Tensor, given: torch.Tensor | None, terms: list[Term], factors: list[Factor]
) -> tuple[torch.Tensor | None, list[Any]]:
    """The gradient that a root starts from, and hooks where its terms need one each."""
    first = factors[0]
    if all(each is first or (isinstance(each, float) and each == first) for each in factors):
        if isinstance(first, float) and first == 1.0:
            return given, []
        if given is None:
            return _full(root, first), []
        return given * first, []
    hooks = [
        term.node.register_prehook(_times(factor))
        for term, factor in zip(terms, factors, strict=True)
        if not (isinstance(factor, float) and factor == 1.0)
    ]
    return given, hooks


def _full(root: torch.Tensor, factor: Factor) -> torch.Tensor:
    if isinstance(factor, torch.Tensor):
        return factor.to(root.dtype).reshape(root.shape)
    return torch.full_like(root, factor, requires_grad=False)


def _times(factor: Factor) -> Callable[[Any], Any]:
    def hook(gradients: tuple[Any, ...]) -> tuple[Any, ...]:
        return tuple(None if g is None else g * factor for g in gradients)

    return hook


def _stops(weighed: Weighed) -> list[Any]:
    """Nothing times what is not finite is nothing: hooks where that could come from."""
    handles = []
    for term, factor in zip(weighed.terms, weighed.factors, strict=True):
        if isinstance(factor, torch.Tensor) or factor == 0.0:
            nodes = term.zeroed if term.kind == "count" else []
            handles += [node.register_prehook(_finite) for node in nodes]
            if not term.plain:
                bearers = [call.bearer for call in term.calls if call.bearer is not None]
                parameters = {p: None for bearer in bearers for p in bearer.trained}
                handles += [p.register_hook(_finite_one) for p in parameters]
    return handles


def _finite_one(gradient: torch.Tensor) -> torch.Tensor:
    return gradient.nan_to_num(nan=0.0)


def _finite(gradients: tuple[Any, ...]) -> tuple[Any, ...]:
    return tuple(None if g is None else _finite_one(g) for g in gradients)


def _in_parts(weighed: Weighed) -> bool:
    """Whether the global loss does not follow from the ranks' own: parts have different factors,
    and what is alike everywhere is not counted once in their mean."""
    if len(weighed.terms) == 1:
        return False
    kinds = {term.kind for term in weighed.terms}
    data = [f for t, f in zip(weighed.terms, weighed.factors, strict=True) if t.kind != "once"]
    if "sum" in kinds and "once" in kinds:
        return True
    first = data[0] if data else 1.0
    return any(each is not first and not _close(each, first) for each in data)


def _close(one: Factor, other: Factor) -> bool:
    if isinstance(one, torch.Tensor) or isinstance(other, torch.Tensor):
        return False
    return abs(one - other) <= 1e-12 * abs(other)


def _value(root: torch.Tensor, terms: list[Term], factors: list[Factor]) -> Factor:
    """What a rank's loss adds to the mean that is the global one."""
    if root.numel() != 1:
        return 0.0
    own = to_whole(root.detach()).reshape(())
    data = [f for t, f in zip(terms, factors, strict=True) if t.kind != "once"]
    factor = data[0] if data else 1.0
    if isinstance(factor, torch.Tensor):
        return torch.where(factor == 0, torch.zeros_like(own), own * factor)
    if factor == 1.0:
        return own
    return own * factor if factor else 0.0
