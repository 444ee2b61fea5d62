"""Refuse an optimizer's step on gradients that were not averaged over the ranks."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from operator import attrgetter
from typing import TYPE_CHECKING, Any, final

import torch
from torch import nn
from torch.optim import Optimizer
from torch.utils.hooks import RemovableHandle

from dream import stall
from dream._errors import ConfigurationError
from dream.adapters.pytorch.private import current_backward, tree_leaves

if TYPE_CHECKING:
    from dream.adapters.pytorch.module import DistributedModule, ModuleRegistry

_requires_grad = attrgetter("requires_grad")


@final
class BackwardCheck:
    """The backward passes of one module, as one of its parameters sees them.

    armed: the whole module was called, and no backward has come since. expected: a backward pass
    runs that averages, and does not tell by itself.
    """

    def __init__(self) -> None:
        self.count = 0
        self.armed = self.expected = False
        self._bare: list[nn.Parameter] = []
        self._reduced: set[int] = set()
        self._others: set[int] = set()
        self._handles: list[RemovableHandle] = []
        self._after: list[RemovableHandle] = []

    def watch(self, parameter: nn.Parameter) -> None:
        """Look at the backward passes that reach `parameter`: the first after a call averages."""
        self.stop()
        self._handles = [parameter.register_post_accumulate_grad_hook(self._arrived)]

    def watch_others(self, parameter: nn.Parameter) -> None:
        """Look at the backward passes that reach `parameter` and are not `expected`."""
        self.stop()
        self._handles = [parameter.register_post_accumulate_grad_hook(self._came_unexpected)]

    def expect(self, parameters: Sequence[nn.Parameter]) -> None:
        """A backward pass is about to run that averages."""
        self.expected = True
        if False in map(_requires_grad, parameters):
            self._bare = [p for p in parameters if not p.requires_grad and p.grad is None]

    def bare_again(self) -> None:
        """It has run. DDP adds 0 to parameters that were frozen since the call: what had no
        gradient has none."""
        while self._bare:
            drop_zeros(self._bare.pop())

    def averaged(self) -> None:
        """The one that was expected has ended."""
        self.expected = self.armed = False
        self.count += 1

    def stop(self) -> None:
        for handle in self._handles:
            handle.remove()
        self._handles = []

    def arm(self) -> None:
        """The whole module is called: the next backward is averaged."""
        self.armed, self.expected = True, False
        while self._after:
            self._after.pop().remove()

    def came(self) -> None:
        """A backward pass came to what the call gave."""
        self.armed = False

    @contextmanager
    def completing(self, parameters: Iterable[nn.Parameter]) -> Iterator[None]:
        """What runs inside completes the backward pass that came. Another one, until the next
        call, would find nothing that averages, whichever parameters it comes to."""
        before = set(self._others)
        yield
        self._others = before
        self._after += [p.register_post_accumulate_grad_hook(self._came_beside) for p in parameters]

    def part_called(self, output: Any) -> None:
        """A part of the module was called by itself: a backward that starts there alone is not
        averaged."""
        for tensor in tree_leaves(output):
            if isinstance(tensor, torch.Tensor) and tensor.requires_grad:
                tensor.register_hook(self._came_through_part)

    def check(self) -> None:
        """Refuse gradients that were not averaged. Called before an optimizer's step."""
        if not self._others:
            self._reduced.clear()
            return
        others = self._others - self._reduced
        self._reduced.clear()
        self._others.clear()
        if others:
            raise ConfigurationError(
                "These gradients were not averaged over the ranks: they are of a backward pass "
                "with no call of the whole model before it. Received: a second backward of one "
                "forward pass, or one through a part of the model called by itself. Add the "
                "losses up and call backward once, and call the model as model(...)."
            )

    def _arrived(self, _: torch.Tensor) -> None:
        if self.armed:
            self.armed = False
            self.count += 1
            self._reduced.add(current_backward())
        else:
            self._others.add(current_backward())

    def _came_unexpected(self, _: torch.Tensor) -> None:
        if not self.expected:
            self._others.add(current_backward())

    def _came_beside(self, _: torch.Tensor) -> None:
        self._others.add(current_backward())

    def _came_through_part(self, _: torch.Tensor) -> None:
        if not self.expected:  # that one averages what else it comes to, too
            self._others.add(current_backward())


def drop_zeros(parameter: nn.Parameter) -> None:
    """Have no gradient where it is 0."""
    if parameter.grad is not None and not parameter.grad.any():
        parameter.grad = None


def watch(optimizer: Optimizer, registry: ModuleRegistry) -> RemovableHandle:
    """Check each step of an optimizer. New optimizers mean that parameters may be new."""
    registry.generation += 1
    return optimizer.register_step_pre_hook(_StepCheck(registry))


@final
class _StepCheck:
    """Cheap where all is well: the parameters are looked at once."""

    def __init__(self, registry: ModuleRegistry) -> None:
        self._registry = registry
        self._generation = -1
        self._seen: dict[DistributedModule, int] = {}

    def __call__(self, optimizer: Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        stall.stepped()
        if len(args) > 1 or kwargs.get("closure") is not None:
            return  # the closure computes the gradients
        if self._generation != self._registry.generation:
            self._find_roots(optimizer)
        for root, seen in self._seen.items():
            root.backwards.check()
            if root.backwards.count == seen and _has_gradients(root):
                raise ConfigurationError(
                    "These gradients were not averaged over the ranks: no backward() followed a "
                    "call of the model since the last step. Received: gradients of "
                    f"{type(root.module).__name__} that were set by hand, or computed by "
                    "torch.autograd.grad. Call backward() on the loss."
                )
            self._seen[root] = root.backwards.count

    def _find_roots(self, optimizer: Optimizer) -> None:
        """The modules whose parameters are stepped; each with a gradient must be of one."""
        reduced = self._registry.reduced()
        seen, self._seen = self._seen, {}
        for group_index, group in enumerate(optimizer.param_groups):
            for index, parameter in enumerate(group["params"]):
                root = reduced.get(id(parameter))
                if root is not None:
                    self._seen[root] = seen.get(root, 0)
                elif parameter.grad is not None and not self._registry.averaged(parameter):
                    raise ConfigurationError(
                        "A parameter's gradient was not averaged over the ranks, since no module "
                        "that was made in the block and called holds it. Received: parameter "
                        f"{index} of group {group_index}, shape {tuple(parameter.shape)}. Make "
                        "it part of a module and call that, or pass the module to "
                        "strategy.prepare."
                    )
        self._generation = self._registry.generation


def _has_gradients(root: DistributedModule) -> bool:
    return any(parameter.grad is not None for parameter in root.trained)
