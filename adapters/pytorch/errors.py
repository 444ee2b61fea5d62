"""Foreign exceptions turned into dream's, in one place."""

from __future__ import annotations

import re
import traceback
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import distributed, nn

from dream import cluster
from dream._errors import ConfigurationError, Desynchronized, DreamError, Unsupported, WorkerFailed


def unfinished(error: RuntimeError) -> ConfigurationError | None:
    """Say in dream's words what DDP says of a parameter whose gradient did not come; None
    where it says something else."""
    if "finished reduction in the prior iteration" not in str(error):
        return None
    named = re.search(r"Parameter indices[^\n]*", str(error))
    return ConfigurationError(
        "The last backward pass did not come to its end, so the gradients were never averaged. "
        f"Received: {named.group() if named else 'an unfinished reduction'}. Let an error of a "
        "backward pass end the loop, and freeze parameters before the model is called, not after."
    )


def share_of_one(error: ValueError, name: str) -> ConfigurationError | None:
    """Say in dream's words what a batch normalisation says of a single sample; None where it says
    something else."""
    if "Expected more than 1 value per channel" not in str(error):
        return None
    return ConfigurationError(
        "This rank's share of a batch is one sample, and a batch normalisation needs two. "
        f"Received: {name}; {error}. Pass drop_last=True, or choose a batch_size that leaves every "
        "rank two samples of the last batch."
    )


_NO_MEMORY = re.compile(
    r"out of memory|can't allocate memory|not enough memory|_STATUS_ALLOC_FAILED", re.IGNORECASE
)
"""As CUDA and its libraries say it, and MPS; as torch's allocator of the CPU does; on Windows."""


def ran_out(error: BaseException) -> bool:
    """Whether memory has run out, of a GPU or of the process."""
    if isinstance(error, (torch.OutOfMemoryError, MemoryError)):
        return True
    return isinstance(error, RuntimeError) and _NO_MEMORY.search(str(error)) is not None


def let_go(error: BaseException) -> None:
    """Have an error hold nothing of what was being computed: its frames do, and those of errors
    that it came of."""
    at: BaseException | None = error
    while at is not None:
        traceback.clear_frames(at.__traceback__)
        at = at.__context__


_NOTES = (
    (
        re.compile("not compiled with CUDA|Found no NVIDIA driver|No CUDA GPUs are available"),
        "no GPU is here. Write .to(device) in place of .cuda(), with device = "
        'torch.device("cuda" if torch.cuda.is_available() else "cpu"): on GPUs, each rank has '
        "its own already.",
    ),
    (
        re.compile(
            "mixed torch.Tensor and DTensor|not have a sharding strategy|evenly sharded"
            "|Sharding propagation failed|along the sharded dimension|supported with DTensor"
            "|supported for tensor subclasses|require placement changes"
        ),
        "this rank holds a part of each parameter, and all of it only while its module is called: "
        "the script computes with one elsewhere. Do so in the module's forward, or with "
        "parameter.full_tensor(), on every rank; or choose 'mirrored', or zero=1 under 'sharded', "
        "which leave parameters whole.",
    ),
    (
        re.compile("tensors to be on the same device"),
        "a model that a strategy splits lies on strategy.topology.device, wherever the script "
        "left it: send batches and targets there.",
    ),
    (
        re.compile(
            "'(int|float|NoneType)' object has no attribute 'backward'|division by zero"
            "|expects a non-empty TensorList|unsupported operand.*'NoneType' and"
            "|does not require grad and does not have a grad_fn"
        ),
        "if none of this rank's rows has added to the loss, where other ranks' have: begin with "
        "`loss = output.sum() * 0`, and divide by max(count, 1).",
    ),
    (
        re.compile(
            # Not of a rank that is only slow in what is no such loop.
            "^(?!.*(?:reading input|is stopped|writing a|loading a|compiling|in_shards)).*"
            "(?:ranks are not in the same call|has waited for others|did not come to)",
            re.DOTALL,
        ),
        "a loop that calls backward, an optimizer or a model once for each sample, task or expert, "
        "or where a number of its rows says so, as len(x), does so as often as this rank's rows "
        "say. Add the losses up and call backward once for each batch; call what no row of this "
        "rank goes to on none: model(x[:0]).",
    ),
    (
        re.compile("^(?!What is in shards).*tensors_in_shards=", re.DOTALL),
        "what is in shards is saved by all ranks together: call torch.save on every rank, not "
        "behind a test of the rank. Rank 0 writes the file.",
    ),
)
"""What torch and Python say, and what to write instead."""
_NOTED = (
    AssertionError, RuntimeError, AttributeError, TypeError, ZeroDivisionError, Desynchronized,
)  # fmt: skip


def explain(error: BaseException | None) -> None:
    """Add to an error that ends a block what to write."""
    if isinstance(error, _NOTED):
        for said, note in _NOTES:
            if said.search(str(error)):
                error.add_note(f"dream: {note}")


@contextmanager
def peers_may_fail(action: str) -> Iterator[None]:
    """Turn what torch.distributed raises when a peer is gone or late into `WorkerFailed`."""
    try:
        yield
    except (distributed.DistError, RuntimeError) as error:
        if isinstance(error, DreamError):
            raise
        raise peer_failed(action, error) from error


def peer_failed(action: str, error: Exception) -> DreamError:
    """Say in dream's words what torch.distributed raised."""
    if "bind: Address already in use" in str(error):
        return cluster.used_up()
    return WorkerFailed(
        f"Another rank is gone, late or out of step. Received during {action}: {error}. The rank "
        "that failed first says why."
    )


def refuse_computed(module: nn.Module) -> None:
    """Refuse a first call whose parameters were computed: whose they are cannot be seen then."""
    for name, parameter in module.named_parameters():
        if not parameter.is_leaf:
            raise Unsupported(
                "The model's first training call uses computed parameters, for example from "
                f"functional_call. Received: {name} of {type(module).__name__}. Compute them in "
                "the model's forward or by torch.nn.utils.parametrize; or call the model as "
                "model(...) once before, with gradients on."
            )
