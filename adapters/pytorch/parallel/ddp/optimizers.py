"""What the block does to optimizers: a step on gradients that nobody reduced is an error."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any, final

from torch.optim import Optimizer

from dream import stall
from dream._errors import ConfigurationError
from dream.adapters.pytorch.parallel.ddp.modules import Modules
from dream.adapters.pytorch.reducing import Reducing


@final
class Guard:
    """Watches the steps of optimizers."""

    def __init__(self, modules: Modules) -> None:
        self._modules = modules

    def wrap_init(self, init: Callable[..., None]) -> Callable[..., None]:
        """`Optimizer.__init__` that has the optimizer watched."""

        @wraps(init)
        def wrapped(optimizer: Optimizer, *args: Any, **kwargs: Any) -> None:
            init(optimizer, *args, **kwargs)
            self.watch(optimizer)

        return wrapped

    def watch(self, optimizer: Optimizer) -> None:
        """Check each step of the optimizer. New optimizers mean that parameters may be new."""
        self._modules.generation += 1
        optimizer.register_step_pre_hook(_Watch(self._modules))


@final
class _Watch:
    """A step pre-hook. Cheap where all is well: the parameters are looked at once."""

    def __init__(self, modules: Modules) -> None:
        self._modules = modules
        self._generation = -1
        self._seen: dict[Reducing, int] = {}

    def __call__(self, optimizer: Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        stall.stepped()
        if len(args) > 1 or kwargs.get("closure") is not None:
            return  # the closure computes the gradients
        if self._generation != self._modules.generation:
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
        reduced = self._modules.reduced()
        seen, self._seen = self._seen, {}
        for group_index, group in enumerate(optimizer.param_groups):
            for index, parameter in enumerate(group["params"]):
                root = reduced.get(id(parameter))
                if root is not None:
                    self._seen[root] = seen.get(root, 0)
                elif parameter.grad is not None:
                    raise ConfigurationError(
                        "A parameter's gradient was not averaged over the ranks, since no module "
                        "that was made in the block and called holds it. Received: parameter "
                        f"{index} of group {group_index}, shape {tuple(parameter.shape)}. Make "
                        "it part of a module and call that, or pass the module to "
                        "strategy.prepare."
                    )
        self._generation = self._modules.generation


def _has_gradients(root: Reducing) -> bool:
    return any(parameter.grad is not None for parameter in root.trained)
