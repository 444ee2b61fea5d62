"""A parameter's hooks, which wait for the end of the backward pass that its gradient comes in."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, final
from weakref import ref

import torch

from dream._errors import Unsupported
from dream.adapters.pytorch.private import AFTER_GRADIENT, gradient_hooks, to_local, to_whole
from dream.adapters.pytorch.randomness.current import current

Hook = Callable[[torch.Tensor], torch.Tensor | None]


@final
class WaitingHooks:
    """Has hooks on parameters wait for the end of a backward pass. accumulates: whether several
    backward passes make one gradient."""

    def __init__(self, *, accumulates: bool) -> None:
        self._accumulates = accumulates
        self.waiting: dict[int, tuple[ref[torch.Tensor], list[ref[WaitingHook]]]] = {}
        self._arrived: dict[int, None] | None = None

    @property
    def wanted(self) -> bool:
        """Whether a backward pass is to be watched: there are hooks, and it is in no other."""
        return bool(self.waiting) and self._arrived is None

    def refuse_parts(self) -> None:
        if self._accumulates:
            raise Unsupported(
                "A hook on a parameter's gradient is to see all of it, which several backward "
                "passes make here. Received: accumulate=. Remove it, or change gradients between "
                "backward and step."
            )

    def add(self, tensor: torch.Tensor, hook: Hook, *, after: bool) -> WaitingHook:
        """Make what stands for a hook."""
        waiting = WaitingHook(self, id(tensor), hook, after=after)
        known = self.waiting.get(id(tensor))
        if known is None or known[0]() is not tensor:  # one of before, that is gone
            known = self.waiting[id(tensor)] = ref(tensor), []
        known[1].append(ref(waiting))
        return waiting

    def move(self, old: torch.Tensor, new: torch.Tensor) -> None:
        """Have hooks wait for the gradient of a parameter that takes another's place; handles that
        the script has of them stay good."""
        known = self.waiting.get(id(old))
        if known is None or known[0]() is not old:  # one of before, that is gone
            return
        self.refuse_parts()
        _, listed = self.waiting.pop(id(old))
        self.waiting[id(new)] = ref(new), listed
        for made in listed:
            if (each := made()) is not None:
                each.key = id(new)
        of_new = gradient_hooks(new)  # as of those who add its gradient up
        for name, table in gradient_hooks(old).items():
            table.update(of_new.get(name, {}))
            setattr(new, name, table)

    def arrives(self, key: int) -> bool:
        """A parameter's gradient comes, in a backward pass at whose end its hooks run. Returns
        whether there is one."""
        if self._arrived is None:
            return False
        if key in self.waiting:
            self.refuse_parts()
            self._arrived[key] = None
        return True

    @contextmanager
    def passing(self) -> Iterator[None]:
        """A backward pass, after which hooks run."""
        held = self._held()
        arrived: dict[int, None] = {}
        self._arrived = arrived
        try:
            yield
        finally:
            self._arrived = None
        with current.reading(), torch.no_grad():
            self._run(held, arrived)

    def _held(self) -> dict[int, torch.Tensor]:
        """What gradients there are already."""
        held = {}
        for key, (reference, _) in [*self.waiting.items()]:
            tensor = reference()
            if tensor is None:
                del self.waiting[key]
            elif tensor.grad is not None:
                held[key] = tensor.grad.clone()
        return held

    def _run(self, held: dict[int, torch.Tensor], arrived: dict[int, None]) -> None:
        for key in {**arrived, **dict.fromkeys(self.waiting)}:
            reference, listed = self.waiting[key]
            tensor = reference()
            waiting = [each for made in listed if (each := made()) is not None]
            if tensor is None or not waiting:
                continue
            if tensor.grad is None:
                if key in arrived:
                    raise Unsupported(
                        "A hook on a parameter's gradient cannot be run here, where the gradient "
                        "is taken elsewhere. Received: a hook of the script's own. Change "
                        "gradients between backward and step, or choose 'mirrored'."
                    )
                continue
            came = to_whole(tensor.grad - held[key] if key in held else tensor.grad)
            if key in arrived or came.any():
                with _looking_up(tensor):
                    _call(tensor, came, held.get(key), waiting)


@final
class WaitingHook:
    """A hook that waits, and runs at once in a pass that is not watched. key: its parameter's
    id."""

    def __init__(self, owner: WaitingHooks, key: int, hook: Hook, *, after: bool) -> None:
        self._owner = owner
        self.key, self.hook, self.after = key, hook, after

    def __call__(self, given: torch.Tensor) -> torch.Tensor | None:
        return None if self._owner.arrives(self.key) else self.hook(given)


def _call(
    tensor: torch.Tensor,
    came: torch.Tensor,
    held: torch.Tensor | None,
    waiting: list[WaitingHook],
) -> None:
    """Run a parameter's hooks. came: its whole gradient of this pass. held: what it had before."""
    gradient = came
    for each in waiting:
        changed = None if each.after else each.hook(gradient)
        gradient = gradient if changed is None else changed
    if gradient is not came and tensor.grad is not None:
        spread = _spread(gradient, tensor)
        tensor.grad.copy_(spread if held is None else held + spread)
    for each in waiting:
        if each.after:
            each.hook(tensor)


@contextmanager
def _looking_up(tensor: torch.Tensor) -> Iterator[None]:
    """Hooks run: what they look up by a parameter is not there by its shards."""
    try:
        yield
    except KeyError as error:
        if to_local(tensor) is tensor:
            raise
        raise Unsupported(
            "A hook looks up a parameter whose place shards have taken. Received: a table that was "
            f"made before the model was split, and a parameter of shape {tuple(tensor.shape)}. "
            "Make it once all optimizers are made, or use 'mirrored'."
        ) from error


def _spread(gradient: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
    if to_local(like) is like:
        return gradient
    from dream.adapters.pytorch.parallel.sharding.parameters import shard_like  # slow to come

    return shard_like(gradient, like)


def tables(tensor: torch.Tensor) -> list[tuple[dict[int, Any], bool]]:
    """A tensor's tables of hooks, and whether those come after its gradient."""
    return [(table, name == AFTER_GRADIENT) for name, table in gradient_hooks(tensor).items()]
