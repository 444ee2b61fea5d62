"""Copies of models, and unpickled ones: ordinary, until the block makes an optimizer for one. It is
trained then as a model that was made in the block."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any, final

from torch import nn
from torch.optim import Optimizer

from dream.adapters.pytorch.call_hook import ModuleSet, hook_of
from dream.adapters.pytorch.hooks import Hooks
from dream.adapters.pytorch.optimizer import parameters_of


@final
class Copies:
    """Those that came to be in the block without a constructor."""

    def __init__(self, hooks: Hooks) -> None:
        self._hooks = hooks
        self._known = ModuleSet()
        hooks.wrap("set_state", self._knowing)
        hooks.made("optimizer", self._optimized)

    def _knowing(self, set_state: Callable[..., None]) -> Callable[..., None]:
        @wraps(set_state)
        def wrapped(made: nn.Module | Optimizer, state: Any) -> None:
            set_state(made, state)
            if isinstance(made, nn.Module):
                self._known.add(made)
            elif "defaults" in state:  # of a whole one: load_state_dict gives a part
                self._hooks.tell_made("optimizer", made)

        return wrapped

    def _optimized(self, optimizer: Optimizer) -> None:
        stepped = {id(parameter) for parameter in parameters_of(optimizer)}
        for module in [*self._known]:
            if any(id(parameter) in stepped for parameter in module.parameters()):
                for part in module.modules():
                    if hook_of(part) is None:
                        self._hooks.tell_made("module", part)
