"""What copies of modules use of torch, and torch does not promise to keep."""

from __future__ import annotations

from torch import nn


def bare_copy(module: nn.Module) -> nn.Module:
    """A module without tensors, as DataParallel makes its replicas; recurrent layers keep their
    lists of weights by it."""
    return module._replicate_for_data_parallel()  # type: ignore[no-any-return]


def know_weights(module: nn.Module) -> None:
    """Have a recurrent layer that was given other weights know them now: a call would do that, as
    something that it keeps."""
    if isinstance(module, nn.RNNBase):
        module._update_flat_weights()
