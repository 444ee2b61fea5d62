"""Which backward passes of a module were averaged over the ranks.

DDP averages in the first backward after a forward pass of the whole module. Gradients that come
any other way stay this rank's own, without a word; this notices them.
"""

from __future__ import annotations

from typing import Any, final

import torch
from torch import nn
from torch.utils._pytree import tree_leaves
from torch.utils.hooks import RemovableHandle

from dream._errors import ConfigurationError

_task = torch._C._current_graph_task_id  # unique to a backward pass


@final
class Backwards:
    """The backward passes of one module, as one of its parameters sees them."""

    def __init__(self) -> None:
        self.count = 0
        self._armed = False
        self._reduced: set[int] = set()
        self._others: set[int] = set()
        self._handle: RemovableHandle | None = None

    @property
    def armed(self) -> bool:
        """Whether the whole module was called, and no backward has come since."""
        return self._armed

    def watch(self, parameter: nn.Parameter) -> None:
        """Look at the backward passes that reach `parameter`."""
        self.stop()
        self._handle = parameter.register_post_accumulate_grad_hook(self._arrived)

    def stop(self) -> None:
        if self._handle is not None:
            self._handle.remove()

    def arm(self) -> None:
        """The whole module is called: the next backward is averaged."""
        self._armed = True

    def part_called(self, output: Any) -> None:
        """A part of the module was called by itself: a backward that starts there alone is not
        averaged."""
        for tensor in tree_leaves(output):
            if isinstance(tensor, torch.Tensor) and tensor.requires_grad:
                tensor.register_hook(self._came_through_part)

    def check(self) -> None:
        """Refuse gradients that were not averaged. Called before an optimizer's step."""
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
        if self._armed:
            self._armed = False
            self.count += 1
            self._reduced.add(_task())
        else:
            self._others.add(_task())

    def _came_through_part(self, _: torch.Tensor) -> None:
        self._others.add(_task())
