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
from functools import lru_cache, wraps
from typing import Any, final

import torch

from dream.adapters.pytorch import devices
from dream.adapters.pytorch.hooks import BackwardLent
from dream.adapters.pytorch.loss.calls import (
    EXTRA,
    LATE,
    OVERTAKEN,
    PARTS,
    SQUARE,
    STAMP,
    VALUE,
    Bearer,
    Numbers,
    Stamped,
    TrainingCall,
)
from dream.adapters.pytorch.loss.factors import Factor, late_factor
from dream.adapters.pytorch.loss.late_message import LateMessage, message_of
from dream.adapters.pytorch.loss.private import Starts, quick
from dream.adapters.pytorch.loss.read_numbers import is_global, is_used_again, numbers_of
from dream.adapters.pytorch.loss.reading import NEAR, LossReading, Reader, tell_once
from dream.adapters.pytorch.loss.recipe import Recipe
from dream.adapters.pytorch.loss.samples.no_terms import LentZero, has_graph, in_place_of
from dream.adapters.pytorch.loss.samples.row_leaves import RowLeaves
from dream.adapters.pytorch.loss.scaling import begun, multiply, starts_of, value_of
from dream.adapters.pytorch.private import current_backward, recomputing, to_local
from dream.adapters.pytorch.randomness.calls import drawing_again
from dream.adapters.pytorch.update.accumulation import Updates
from dream.adapters.pytorch.update.script_hooks import ScriptHooks
from dream.collectives import Communicator
from dream.data.partition import Share

Run = Callable[..., None]
_CALLS = 64
"""Calls of one module that are remembered until its backward."""


@final
class WeighedBackward:
    """The backward passes of one strategy.

    among: the ranks that share batches. updates: where several micro-batches make one update.
    strict: raise where a loss is not understood. lent: for modules trained after their block.
    within: wraps the passes themselves. lineage: to be told of batches. installed: whether the
    block is open. stamped: what is told with the gradients, and heard of. reader: of losses.
    beside: multiplies gradients that are averaged beside those of modules.
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
        self.reader = Reader(among, strict=strict)
        self.lineage = self.reader.lineage
        self._among, self._updates, self._several = among, updates, among.world_size > 1
        self._calls: dict[Bearer, deque[TrainingCall]] = {}
        self.row_leaves = RowLeaves()
        self._lent, self._within = lent, within
        self.script_hooks = ScriptHooks(self._times, accumulates=updates is not None)
        self.installed = self._running = False
        self.stamped: Stamped | None = None
        self._recipes: dict[str, Recipe | None] = {}
        self._wrapped = lru_cache(1)(lambda run: drawing_again(self.wrap(run)))
        self._late, self._lent_zero = LateMessage(), LentZero()
        self.beside: Callable[[Factor], None] = lambda _: None

    def called(
        self, bearer: Bearer, share: Share | None, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> TrainingCall:
        """A distributed module is called in training. share: as it seems, before the call's own."""
        self._lent_zero.give_back()
        call = TrainingCall.of(bearer, share, given := (*args, *kwargs.values()))
        if not self.reader.settled:
            call.keeps = True
            self.reader.called(call, (args, kwargs), meets=bearer.meets)
        elif self.lineage.entered:
            self.lineage.rest()  # batches that were read before: no loader hands out the next
        elif share is not None and self.reader.untraced.glance(share, given):
            self._recipes.clear()
        self.row_leaves.note(call.share, given)
        calls = self._calls.get(bearer)
        if calls is None or not bearer.waits:
            self._calls[bearer] = calls = deque(maxlen=_CALLS)
        calls.append(call)
        return call

    def waits(self) -> bool:
        """Whether the backward of a call has not come."""
        if self._running:
            return True
        for bearer in self._calls:  # noqa: SIM110
            if bearer.waits:
                return True
        return False

    def lend(self) -> None:
        """A loop calls a module: its backward is weighed after the block too."""
        if not self.installed and self._lent is not None:
            self._lent.lend(self._wrapped)

    def open(self, *, installed: bool) -> None:
        """The block is entered. installed: losses are weighed by `torch.autograd.backward`."""
        self.installed, self.lineage.outside = installed, False

    def close(self) -> None:
        """The block ends."""
        self.installed, self.lineage.outside = False, True
        self.lineage.rest()

    def _times(self) -> int:
        """As many times as in the global gradient a rank's rows count in its own."""
        shares = (call.share for calls in self._calls.values() for call in calls)
        return max((share.parts for share in shares if share is not None), default=1)

    @property
    def cut(self) -> bool:
        """Whether several micro-batches make one update."""
        return self._updates is not None

    def bearers(self) -> list[Bearer]:
        """Those that were called in training, and whose backward has not come."""
        return [] if self._running else [bearer for bearer in self._calls if bearer.waits]

    def read_at_once(self, roots: list[Any]) -> LossReading:
        """What losses are, and factors to which no late one is to come."""
        return self.reader.read(roots, self.waiting(), lambda _: False, cut=False)

    def waiting(self) -> list[TrainingCall]:
        """The calls whose backward has not come."""
        return [call for bearer in self.bearers() for call in self._calls[bearer]]

    def taken_elsewhere(self) -> None:
        """The calls that wait have had their gradients taken, averaged, by no backward pass."""
        for bearer in self.bearers():
            bearer.taken_elsewhere()
        self._clear()

    def around(self, run: Run) -> Run:
        """What an explicit step calls: `run`, weighed unless it is already."""
        return run if self.installed else self._wrapped(run)

    def wrap(self, run: Run) -> Run:
        """`torch.autograd.backward` that weighs what it starts from."""
        run = self._within(quick(run))
        careful = self.script_hooks.around(self.row_leaves.around(self._read_and_run(run)))

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
            if self._late.held and self._calls:
                self.hear_late()
            if given is None and inputs is None and not (retain_graph or create_graph):
                known = self._known(tensors)
                if known is not None:
                    self._run_known(run, tensors, *known)
                    return
            careful(tensors, given, retain_graph, create_graph, inputs)

        return backward

    def _read_and_run(self, run: Run) -> Run:
        """Backward passes from what is not known yet."""

        def backward(tensors: Any, given: Any, retain: Any, create: bool, inputs: Any) -> None:
            roots = [tensors] if isinstance(tensors, torch.Tensor) else list(tensors)
            if not self._calls or not all(map(has_graph, roots)) or recomputing():
                if given is not None or inputs is not None or not self._add_nothing(run, roots):
                    run(tensors, given, retain, create, inputs=inputs)
                return
            gradients = [given] if given is None or isinstance(given, torch.Tensor) else list(given)
            gradients = gradients * len(roots) if gradients == [None] else gradients
            keep = {"retain_graph": retain, "create_graph": create}
            self._start(run, roots, gradients, keep, inputs)

        return backward

    def _add_nothing(self, run: Run, roots: list[Any]) -> bool:
        """Have a number without a graph be a loss that this rank adds nothing to, if it is one."""
        if (nothing := in_place_of(roots, self.waiting())) is not None:
            self._start(run, [nothing], [None], {}, None)
            self._lent_zero.lend(roots[0])
            is_global(roots[0], self._among).data.copy_(nothing.detach())
        return nothing is not None

    def through(
        self, call: TrainingCall, run: Run, root: torch.Tensor, given: Any, keep: dict[str, Any]
    ) -> None:
        """Run a backward pass that comes through no module; `call` stands for one."""
        assert call.bearer is not None
        self.hear_late()
        self._calls[call.bearer] = deque([call])
        self._start(run, [root], [given], keep, None)

    def _known(self, root: Any) -> tuple[Bearer, Recipe] | None:
        """The module that a loss came through, and what is known of such a loss; None where it is
        not one that was read before, of the one call that waits."""
        if len(self._calls) != 1 or self.row_leaves.held or not self.script_hooks.idle:
            return None
        node: Any = getattr(root, "grad_fn", None)
        recipe = None if node is None else self._recipes.get(node.name())
        ((bearer, calls),) = self._calls.items()
        if recipe is None or len(calls) != 1 or not bearer.waits or current_backward() != -1:
            return None
        if not recipe.fits(node, calls[0]) or (recipe.weighed.late and begun(bearer)):
            return None
        return bearer, recipe

    def _run_known(self, run: Run, root: torch.Tensor, bearer: Bearer, recipe: Recipe) -> None:
        """What `_start` does, of what there is to do for a loss of one term. In one piece, as
        `Recipe.fits` is: with a small model, each call of a function is a thousandth of a step."""
        weighed, factor, completes = recipe.weighed, recipe.factor, bearer.completes
        if type(root) is not torch.Tensor or devices.is_away(root):
            value = value_of(root, recipe.terms[0], [factor])
            reading = LossReading([bearer], recipe.terms, weighed, told=recipe.overtaken)
            message = self._message(root, value, reading, last=completes)
            self._pass(run, [root], reading, message, [root], [recipe.start(root)], {}, None)
            return
        stamp = 0 if self.stamped is None or not completes else self.stamped.stamp()
        value = devices.number_in(root) * factor
        numbers = (value, recipe.sent, recipe.counts, recipe.overtaken, stamp, stamp * stamp)
        starts, gradients = [root], [recipe.start(root)]
        sent = bearer.carry(numbers, root)
        if sent is not None:
            starts, gradients = [root, sent[0]], [gradients[0], sent[1]]
        if completes:
            node: Any = root.grad_fn
            node.metadata[LATE] = True
        self._running = True
        try:
            run(Starts(starts), Starts(gradients))
            bearer.finish(run)
        finally:
            self._running = False
            self._clear()
        if not completes:
            return
        means: Any = bearer.received()
        if isinstance(means, torch.Tensor):
            means = numbers_of(means)
        if means[EXTRA] or means[OVERTAKEN] or abs(means[PARTS] - recipe.counts) >= 1.0:
            self._finish([root], LossReading([bearer], recipe.terms, weighed), {})
            return
        if self._several:
            root._dream_global = True  # type: ignore[attr-defined]  # as `is_global` notes
        devices.put_number(root, means[VALUE])
        if means[STAMP] ** 2 != means[SQUARE] and self.stamped is not None:
            self.stamped.hear(means[STAMP], means[SQUARE])

    def _clear(self) -> None:
        """A backward has ended: forget the calls that it came from."""
        if self.reader.passed():
            self._recipes.clear()
        for bearer in [*self._calls]:
            if not bearer.waits:
                del self._calls[bearer]
        if self._lent is not None and not self.installed and not self._calls:
            self._lent.give_back()

    def _start(
        self, run: Run, roots: list[Any], gradients: list[Any], keep: dict[str, Any], inputs: Any
    ) -> None:
        armed = [c for bearer, calls in self._calls.items() if bearer.waits for c in calls]
        if len(gradients) != len(roots) or not armed:
            run(roots, gradients, inputs=inputs, **keep)  # torch says what is wrong
            return
        reading = self._read(roots, armed)
        last = bool(reading.bearers) and all(bearer.completes for bearer in reading.bearers)
        given, handles, value = starts_of(roots, gradients, reading.terms, reading.weighed)
        numbers = self._message(roots[0], value, reading, last=last)
        if inputs is not None:
            inputs = [inputs] if isinstance(inputs, torch.Tensor) else list(inputs)
        try:
            self._pass(run, roots, reading, numbers, [*roots], given, keep, inputs)
        finally:
            for handle in handles:
                handle.remove()

    def _pass(
        self,
        run: Run,
        roots: list[Any],
        reading: LossReading,
        numbers: Numbers,
        starts: list[Any],
        given: list[Any],
        keep: dict[str, Any],
        inputs: list[Any] | None,
    ) -> None:
        """Run backward, with a message beside it. starts, given: what it starts from, and the
        gradients there."""
        bearers, completes = reading.bearers, bool(reading.bearers)
        for bearer in bearers:
            completes = completes and bearer.completes
            sent = bearer.carry(numbers, roots[0])
            if sent is not None:
                starts.append(sent[0])
                given.append(sent[1])
                inputs = None if inputs is None else [*inputs, sent[0]]
        if completes and len(roots) == 1:
            roots[0].grad_fn.metadata[LATE] = True
        try:
            if len(starts) == 1:
                run(starts[0], given[0], inputs=inputs, **keep)
            else:
                run(starts, given, inputs=inputs, **keep)
            for bearer in bearers:
                bearer.finish(run)
        finally:
            self._clear()
        if completes:
            self._finish(roots, reading, keep)

    def _read(self, roots: list[Any], armed: list[TrainingCall]) -> LossReading:
        cut = self._updates is not None
        reading = self.reader.read(roots, armed, lambda all_: not any(map(begun, all_)), cut=cut)
        if len(armed) == 1 and len(roots) == 1 and not cut:
            self._recipes[roots[0].grad_fn.name()] = Recipe.of(reading, roots[0], armed[0])
        return reading

    def _message(
        self, like: torch.Tensor, value: Factor, reading: LossReading, *, last: bool
    ) -> Numbers:
        weighed = reading.weighed
        sent = weighed.sent if weighed.late else 0.0
        stamp = 0 if self.stamped is None or not last else self.stamped.stamp()
        return message_of((value, sent, reading.parts, reading.told, stamp, stamp * stamp), like)

    def hear_late(self) -> None:
        """Be told what the ranks told each other in the backward pass before, if it has not been
        read. To be called on every rank, as the next one begins or the block ends."""
        if (message := self._late.take()) is not None:
            self._hear(message, self._late.ends_in, near=self._late.near)

    def _hear(self, message: Sequence[float], ends_in: str, *, near: bool) -> None:
        """Be told what the ranks told each other of losses that here end in some operation. near:
        whether the value is not the exact one if their parts count differently."""
        if self.reader.parts(message[PARTS], ends_in) and near:
            tell_once(NEAR, self.reader.said)
        if message[OVERTAKEN]:
            self._recipes.clear()  # who reads again meets the others
            self.reader.hear(message[OVERTAKEN])
        if self.stamped is not None:
            self.stamped.hear(message[STAMP], message[SQUARE])

    def _finish(self, roots: list[Any], reading: LossReading, keep: dict[str, Any]) -> None:
        """Backward has ended, and the message is there."""
        bearers, weighed = reading.bearers, reading.weighed
        message: Any = bearers[0].received()
        if isinstance(message, torch.Tensor) and not devices.is_away(message):
            message = numbers_of(message)
        one = len(roots) == 1 and roots[0].numel() == 1 and not is_used_again(roots[0], keep)
        ends_in, near = roots[0].grad_fn.name(), one and len(weighed.terms) > 1
        late: Factor = 1.0
        if not isinstance(message, torch.Tensor):
            self._hear(message, ends_in, near=near)
        elif self._several:
            self.hear_late()  # of a pass within this one
            self._late.keep(message, ends_in, near=near)
        if weighed.late:
            late = late_factor(weighed, message[EXTRA] * self._among.world_size)
            if isinstance(late, torch.Tensor) or late != 1.0:
                multiply((p for bearer in bearers for p in bearer.trained), late)
                self.beside(late)
                if self._updates is not None:
                    self._updates.held.renote()
        if one:
            to_local(roots[0]).data.fill_(message[VALUE] * late)
            is_global(roots[0], self._among)
