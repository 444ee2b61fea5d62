"""What the block does to optimizers: a step on gradients that nobody reduced is an error."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any, final

from dream.adapters.pytorch.modules import Modules
from torch.optim import Optimizer

from dream._errors import ConfigurationError


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
        self._calls = 0
        self._checked: tuple[int, int] | None = None

    def __call__(self, optimizer: Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        modules = self._modules
        parameters = len(optimizer.param_groups[0]["params"]), len(optimizer.param_groups)
        if modules.calls == self._calls:
            self._refuse_unreduced(optimizer, args, kwargs)
        elif self._checked != parameters:
            self._refuse_foreign(optimizer)
            self._checked = parameters
        self._calls = modules.calls

    def _refuse_unreduced(
        self, optimizer: Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> None:
        if len(args) > 1 or kwargs.get("closure") is not None:
            return  # the closure computes the gradients
        if any(p.grad is not None for group in optimizer.param_groups for p in group["params"]):
            raise ConfigurationError(
                "These gradients were not averaged over the ranks: no distributed module was "
                "called since the last step. Received: gradients from a part of a model, called "
                "by itself. Call the model as model(...), or the part alone from the start."
            )

    def _refuse_foreign(self, optimizer: Optimizer) -> None:
        reduced = self._modules.reduced()
        for group_index, group in enumerate(optimizer.param_groups):
            for index, parameter in enumerate(group["params"]):
                if parameter.grad is not None and id(parameter) not in reduced:
                    raise ConfigurationError(
                        "A parameter's gradient was not averaged over the ranks, since no module "
                        "that was made in the block and called holds it. Received: parameter "
                        f"{index} of group {group_index}, shape {tuple(parameter.shape)}. Make "
                        "it part of a module and call that, or pass the module to "
                        "strategy.prepare."
                    )
