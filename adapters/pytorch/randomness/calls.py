"""The calls that train a model, whose random draws are those of the global batch."""

from __future__ import annotations

from collections.abc import Callable, Iterator, MutableMapping, Sequence
from contextlib import contextmanager, nullcontext
from functools import wraps
from typing import Any, TypeGuard, final
from weakref import ref

import torch
from torch import nn
from torch.utils.weak import WeakIdKeyDictionary

from dream._log import Once, logger
from dream.adapters.pytorch.call_hook import hook_of
from dream.adapters.pytorch.data.modes import Modes
from dream.adapters.pytorch.data.shares import Shares
from dream.adapters.pytorch.hooks import DrawPatches
from dream.adapters.pytorch.private import tree_leaves
from dream.adapters.pytorch.randomness.current import (
    RowMemory,
    State,
    current,
    same,
    set_state,
    state,
)
from dream.adapters.pytorch.randomness.generators import InStep
from dream.adapters.pytorch.randomness.joins import joins
from dream.adapters.pytorch.randomness.operations import standing_for
from dream.adapters.pytorch.randomness.rows import Rows
from dream.adapters.pytorch.randomness.sites import Sites, orders_data
from dream.data.partition import Share

_WATCHED = 2
"""Calls of a model at whose end it is seen whether anything unknown has drawn."""

_LOOPS = 8
"""Calls after which it is seen whether anything unknown draws in the loop, until the next one."""

_OF_MICROS = (
    "torch.%s in the loop draws anew for each micro-batch of accumulate=: its numbers are not "
    "those of a whole batch. Draw within the model, or add gradients up by hand"
)
_OF_EACH = (
    "torch.%s in the loop draws once for each row of a rank's share: the numbers are alike on "
    "every rank, not those of one device. Draw for all rows at once, as torch.rand(len(x))"
)
_OF_SEVERAL = (
    "torch.%s in the loop makes several rows for each of the batch's, the same on every rank: they "
    "are not those of one device. Draw (len(batch), n, ...), and flatten that"
)
_OF_ONE = (
    "torch.%s in the loop draws for a batch, and nothing tells for which of the loaders that are "
    "read: it may not be that of one device. Draw for a tensor of it, as torch.randn_like(x)"
)

DROPS = (nn.Dropout, nn.Dropout1d, nn.Dropout2d, nn.Dropout3d, nn.AlphaDropout)

patches = DrawPatches(standing_for)


@final
class _Seen:
    """What is known of a model. calls: that were watched. alone: what it draws by operations that
    give the rows of a batch to nobody, in words; empty where there is nothing. compiled: so that
    no draw is told from another; told: that there are some. quiet: its first calls drew nothing,
    and it is only seen whether that stays so. forked: its call runs on a state of this rank's."""

    def __init__(self, module: nn.Module) -> None:
        self.calls = 0
        self.told = False
        self.memories: dict[int, RowMemory] = {}
        self.drops = any(isinstance(m, DROPS) for m in module.modules())
        self.drew = self.quiet = self.put = self.forked = False
        self.before: State | None = None
        self.passes = -1
        self.share: Share | None = None
        self.rows: Rows | None = None
        self.compiled = any(map(is_compiled, module.modules()))
        fused = [n or type(m).__name__ for n, m in module.named_modules() if _draws_inside(m)]
        self.alone = f"dropout inside {fused[0]}" if fused else ""


@final
class CallDraws:
    """The draws of one strategy's training calls.

    rank: among those that batches are dealt to. modes: told which models are called.
    """

    def __init__(
        self,
        rank: int,
        shares: Shares,
        modes: Modes | None = None,
        in_step: InStep | None = None,
        randomness: str = "global",
    ) -> None:
        self._rank = rank
        self._shares = shares
        self._modes = modes or Modes()
        self._in_step = in_step
        self._local = randomness == "local"
        self._seen: MutableMapping[nn.Module, _Seen] = WeakIdKeyDictionary()  # see ModuleSet
        self._before: State | None = None
        self._last_of: Callable[[], nn.Module | None] = lambda: None
        self._last: _Seen | None = None
        self._opened = False
        self._running: list[_Seen | None] = []
        self._loops = 0
        self._once = Once()
        self._sites = Sites()

    def open(self) -> None:
        """The block begins."""
        current.begin()
        patches.put(anew=True)
        self._opened = True
        joins.forget()
        joins.share_of, joins.newest = self._shares.given_as, self._shares.newest
        if not self._local:
            current.outside = self._of_the_loop
            current.alike = self._drawn_alike

    def close(self) -> None:
        """The block ends."""
        current.outside = current.alike = None
        current.strayed()  # ends the watch
        self._opened = False
        joins.forget()
        patches.take_back()

    def begin(self, module: nn.Module, share: Share | None, given: object = ()) -> None:
        """A call that trains `module` begins. share: of the batch that it is on. given: what it is
        called on."""
        current.trains_here()
        if not self._running and current.expected and current.strayed() and not self._shares.apart:
            self._say("the loop has random draws by an operation that dream does not know, as one "
                      "that was kept under another name before the block")  # fmt: skip
        if not _is_part(share) or self._in_step is None or self._in_step.apart:
            self._modes.called(module)
            self._running.append(None)
            if share is not None:
                current.last = None  # a backward pass draws again what the whole batch drew
            return
        seen = self._last if self._last_of() is module else self._look_up(module)
        assert seen is not None
        if seen.passes != self._modes.passes:
            seen.passes = self._modes.passes
            self._modes.called(module)
        self._running.append(seen)
        if not self._opened:
            self._put(seen)
        if share.micros > 1:
            self._draw_again(share)
        if seen.compiled and seen.quiet and not self._local:
            seen.before = seen.before or state()
            return
        if self._local or seen.compiled or seen.alone:
            seen.forked = True
            current.fork(self._rank)
        if self._local or seen.compiled:
            return
        if seen.rows is None or (seen.share is not share and seen.share != share):
            seen.share, seen.rows = share, Rows.of(share)
        pieces = 0
        seen.rows.joined.clear()
        if (joins.wanted or not seen.quiet) and (joins.used or seen.calls < _WATCHED):
            leaves = (x for x in tree_leaves(given) if isinstance(x, torch.Tensor))
            pieces = joins.begin(leaves, seen.rows, self._of_others(share))
        if (memory := seen.memories.get(pieces)) is None:
            memory = seen.memories[pieces] = RowMemory()
        current.memory, current.divided, memory.draws = memory, False, 0
        current.call = current.last = seen.rows
        if seen.calls < _WATCHED and not (seen.alone or self._shares.apart):
            current.watch()

    def end(self, module: nn.Module) -> None:
        """It has ended."""
        seen = self._running.pop()
        if seen is None:
            return
        current.call = None
        apart = seen.compiled and seen.forked and current.drew_alone()
        if seen.calls < _WATCHED:
            seen.drew |= apart if seen.compiled else current.drew()
            if current.strayed():
                seen.alone = "random draws by an operation that dream does not know"
                self._tell(seen.alone, module)
            seen.quiet = seen.calls + 1 == _WATCHED and not (seen.drew or seen.alone or seen.drops)
        if apart and not seen.told:
            seen.told = True
            self._tell("random draws in compiled code", module)
        seen.calls += 1
        if seen.forked:
            seen.forked = False
            current.join()
        if self._loops < _LOOPS and self._opened and not (self._running or self._local):
            self._loops += 1
            if not self._shares.apart:
                current.watch()
        if seen.put:
            seen.put = False
            patches.take_back()
        elif seen.before is not None:
            self._check_quiet(seen, module)

    def _of_others(self, share: Share) -> Iterator[Rows]:
        """The rows of other batches than that of a call."""
        return (Rows.of(each) for each in self._shares.newest() if each is not share)

    def _put(self, seen: _Seen) -> None:
        """A call outside the block begins."""
        seen.put = current.late = not seen.quiet
        if seen.put:
            patches.put()
        else:
            seen.before = state()

    def _check_quiet(self, seen: _Seen, module: nn.Module) -> None:
        """Whether a model draws after all."""
        before, seen.before = seen.before, None
        if before is None or same(before, state()):
            return
        seen.quiet = False
        set_state(before)  # shares of other sizes draw more or less: all go on in step
        if seen.compiled:
            logger.info(
                "a call of %s has random draws in compiled code, which its first calls had not: in "
                "this call every rank draws the same, and from the next on each for itself, so "
                "they are not those of one device", type(module).__name__,
            )  # fmt: skip
            seen.told = True
        else:
            self._say(
                f"a call of {type(module).__name__} has random draws, which its first calls had "
                "not, outside the block; those of its next calls are for the global batch. In this "
                "call"
            )

    def _look_up(self, module: nn.Module) -> _Seen:
        seen = self._seen.get(module)
        if seen is None:
            seen = self._seen[module] = _Seen(module)
            self._tell(seen.alone, module)
        self._last_of, self._last = ref(module), seen
        return seen

    @contextmanager
    def alone(self, module: nn.Module, what: str) -> Iterator[None]:
        """Have what runs inside draw on each rank for itself, and leave the generators in step.
        what: why a draw is not that of one device, said where `module` has dropout."""
        if self._in_step is None or self._in_step.apart:
            yield
            return
        if not self._local and any(isinstance(m, DROPS) and m.p > 0 for m in module.modules()):
            self._say(f"dropout of {type(module).__name__} is drawn by {what}")
        current.fork(self._in_step.ranks.rank)
        try:
            yield
        finally:
            current.join()

    def _draw_again(self, share: Share) -> None:
        """Have every micro-batch draw what the whole batch draws."""
        if share.micro == 0 or self._before is None:
            self._before = state()
        else:
            set_state(self._before)

    def _tell(self, what: str, module: nn.Module) -> None:
        if what and not self._local:
            self._say(f"a call of {type(module).__name__} has {what}")

    def _say(self, what: str) -> None:
        self._once(
            f"{what}: each rank draws its random numbers there for itself, so they are not those "
            "of one device"
        )

    def _of_the_loop(self, shape: Sequence[int], like: object, name: str) -> Rows | None:
        """The rows of the batch that the loop holds, for what it draws beside a model's call. like:
        the tensor that it is drawn for, if any."""
        if self._in_step is None or self._in_step.apart:
            return None
        share, doubtful = self._shares.drawn_for(like)
        if not _is_part(share) or orders_data():
            return None
        rows = self._of_loops_batch(shape, like, name, share) if len(shape) else None
        counts = (share.count, *(each.count for each in self._shares.newest()))
        if doubtful and (rows is not None or (len(shape) and shape[0] in counts)):
            self._once(_OF_ONE, name)
        alike = rows is None and share.count > 1 and not self._modes.parameters(shape)
        if alike and self._sites.times(self._shares.handed_out) == share.count:
            self._once(_OF_EACH, name)
        return rows

    def _of_loops_batch(
        self, shape: Sequence[int], like: object, name: str, share: Share
    ) -> Rows | None:
        if share.micros > 1:
            self._once(_OF_MICROS, name)
            return None
        parameters = self._modes.parameters(shape)
        if parameters and not self._shares.holds(like) and _in_memory_of(like, parameters):
            return None
        others = shape[0] != share.count or not share.count
        if others and (joined := self._joined(shape[0], like, share)):
            return joined
        single = share.count == 1 and len(shape) == 1  # torch.rand(1) is nobody's row
        found = self._sites.of_batch(shape, share.count, doubtful=single or bool(parameters))
        if found is None and parameters:
            drops = "dropout" in name and getattr(like, "grad_fn", None) is None
            found = drops or self._sites.guess(shape)
            if not drops:  # it is no parameter, and has no graph that leads to one
                self._say_doubtful(name, shape, taken_for_rows=found)
        if self._sites.several or self._sites.multiplied:
            self._once(_OF_SEVERAL, name)
        return Rows.of(share) if found else None

    def _joined(self, length: int, like: object, share: Share) -> Rows | None:
        """The rows that a draw of this length is for, where they were joined."""
        given = Rows.of(share), self._of_others(share)
        if isinstance(like, torch.Tensor):
            found = joins.rows_of(like, *given)
        else:
            found = joins.of_length(length, *given)
            if found is not None and not self._sites.reads_joined(length):
                return None
        return found if found is not None and found.count == length else None

    def _drawn_alike(self, x: torch.Tensor) -> None:
        """The script has drawn what is no share's."""
        if self._running or not x.dim() or self._in_step is None or self._in_step.apart:
            return
        share = self._shares.of_draws(None)
        if share is not None:
            may_be_rows = share.count and x.shape[0] % share.count == 0
            if share.parts == 1 or share.micros > 1 or (self._sites.several and may_be_rows):
                return
        self._shares.alike.drawn(x, share)

    def _say_doubtful(self, name: str, shape: Sequence[int], *, taken_for_rows: bool) -> None:
        taken = (
            "the rows of a batch, and drawn for the global one. Draw for a parameter by "
            "torch.randn_like(parameter)"
            if taken_for_rows
            else "the parameter's, and drawn alike on every rank. Draw for a batch by "
            "torch.randn_like(batch)"
        )
        self._once(
            f"torch.{name} in the loop draws a shape that this rank's rows and a parameter have, "
            "%s: it is taken for %s", tuple(shape), taken,
        )  # fmt: skip


def drawing_again(run: Callable[..., None]) -> Callable[..., None]:
    """A backward pass after the block, which may compute again what a call drew."""

    @wraps(run)
    def drawing(*args: Any, **kwargs: Any) -> None:
        with patches.standing() if current.late else nullcontext():
            run(*args, **kwargs)

    return drawing


def _is_part(share: Share | None) -> TypeGuard[Share]:
    """Whether others have more of its batch: another rank, or another micro-batch."""
    return share is not None and (share.parts > 1 or share.micros > 1)


def _in_memory_of(x: object, parameters: Sequence[nn.Parameter]) -> bool:
    """Whether a tensor is one of the parameters, or the gradient of one."""
    if not isinstance(x, torch.Tensor):
        return False
    own = [t for p in parameters for t in (p, p.grad) if t is not None]
    return any(t.data_ptr() == x.data_ptr() for t in own)


def is_compiled(module: nn.Module) -> bool:
    """Whether a module is compiled itself, in place or not."""
    inner = getattr(hook_of(module), "inner", None)
    return type(module).__name__ == "OptimizedModule" or hasattr(
        inner, "_torchdynamo_orig_callable"
    )


def _draws_inside(module: nn.Module) -> bool:
    """Whether a layer's dropout is a part of its kernel."""
    return isinstance(module, nn.RNNBase) and module.dropout > 0 and module.num_layers > 1
