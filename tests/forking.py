"""What a fork server imports for the ranks of tests: all that their training would import, in the
order in which a script would."""

from __future__ import annotations

_EACH = "numpy dream"
TORCH = (
    f"{_EACH} torch torch.distributed.tensor torch.distributed.fsdp torch.distributed.pipelining "
    "torch._dynamo"
)
KERAS_ON_TORCH = f"{TORCH} keras"
TENSORFLOW = f"{_EACH} tensorflow keras tensorflow.experimental.dtensor"
