"""A pipeline's stage as it is computed: in a precision, and kept for backward or computed again."""

from __future__ import annotations

from typing import Any, final

from torch import nn

from dream._errors import Unsupported
from dream.adapters.pytorch.call_hook import set_hook
from dream.adapters.pytorch.update.precision import Precision
from dream.adapters.pytorch.update.recompute import How, again


@final
class Computed(nn.Module):
    """last: the stage gives the model's output, which is float32. whole: backward computes the
    stage again, of which what goes in is kept."""

    def __init__(
        self, graph: nn.Module, precision: Precision | None, *, last: bool, whole: bool
    ) -> None:
        super().__init__()
        set_hook(self, None)  # made in the block, but no user's
        self.graph = graph
        self._precision, self._last, self._whole = precision, last, whole

    def forward(self, *taken: Any) -> Any:
        if self._precision is None:
            return self._run(*taken)
        with self._precision.casting():
            output = self._run(*taken)
            return self._precision.restored(output) if self._last else output

    def _run(self, *taken: Any) -> Any:
        return again(self.graph, [], *taken) if self._whole else self.graph(*taken)


def refuse_chains(how: How) -> None:
    if how == "sqrt":
        raise Unsupported(
            "A pipeline's stages are no chains to be cut in runs. Received: recompute='sqrt'. Say "
            "recompute=True, which keeps of each stage what goes into it, or name layers."
        )
