"""What ranks look at before they train, and what needs values, left out: the names are torch's and
dream's own, and the tests of rehearsals fail when one goes."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from torch.distributed.pipelining import schedules
from torch.distributed.pipelining._utils import InferenceMode

from dream.adapters.pytorch.hooks import Patches
from dream.adapters.pytorch.parallel.split import tensor_root, tracing
from dream.adapters.pytorch.update import batch_norm

_SEVERAL = 2.0
"""Values of a BatchNorm's channel, of which nothing in a step's size or time depends."""


@contextmanager
def on_trust() -> Iterator[None]:
    """Ranks are alike, a BatchNorm has values to normalise by, and no random number is drawn in a
    forward pass. What is warned of is said again when somebody trains."""
    patches = Patches()
    patches.replace(tensor_root, "check_alike", lambda *_: None)
    patches.replace(batch_norm, "number", lambda _: _SEVERAL)
    patches.replace(tracing, "_generators", lambda: None)
    patches.replace(schedules._PipelineSchedule, "_warmup_p2p", _settled)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        patches.restore()


def _settled(_: object, stages: Sequence[Any], *__: object) -> None:
    """What the stages of ordinary tensors vote for."""
    for stage in stages:
        stage._inference_mode = InferenceMode.STATIC
