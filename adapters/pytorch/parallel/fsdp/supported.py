"""Models that FSDP2 cannot shard, refused by name."""

from __future__ import annotations

from torch import nn
from torch.distributed.tensor import DTensor
from torch.nn.utils.parametrize import ParametrizationList

from dream._errors import Unsupported
from dream.adapters.pytorch.parallel.fsdp.units import Owned


def check_dtypes(module: nn.Module, own: Owned) -> None:
    parameters = [getattr(part, name) for part, name in own]
    dtypes = {parameter.dtype for parameter in parameters if parameter.requires_grad}
    if len(dtypes) > 1:
        raise Unsupported(
            "Parameters that are gathered together must be of one dtype. Received: "
            f"{', '.join(sorted(map(str, dtypes)))} in {type(module).__name__}. Put those of "
            "another dtype into a child module, or use 'mirrored'."
        )


def check_supported(module: nn.Module) -> None:
    """Refuse by name what FSDP2 cannot shard."""
    for name, part in module.named_modules():
        if isinstance(part, nn.Embedding | nn.EmbeddingBag) and part.sparse:
            raise Unsupported(
                f"FSDP2 cannot reduce sparse gradients. Received: {name or type(part).__name__} "
                "with sparse=True. Pass sparse=False, or use 'mirrored'."
            )
        if isinstance(part, nn.AdaptiveLogSoftmaxWithLoss):
            raise Unsupported(
                "Ranks gather a part's parameters together, and this one calls only those of its "
                f"clusters that a rank's own targets are in. Received: {name or 'a model'}, an "
                "AdaptiveLogSoftmaxWithLoss. Use 'mirrored' or zero=1."
            )
    for name, parameter in module.named_parameters():
        if parameter.dim() == 0:
            raise Unsupported(
                "FSDP2 cuts parameters along their first dim, and a number has none. Received: "
                f"{name} of {type(module).__name__}, shape (). Give it shape (1,), or use "
                "'mirrored' or zero=1."
            )
        if parameter.is_complex() and parameter.shape == (1,):
            raise Unsupported(
                "A part of one complex number has no view of its own as real ones, by which "
                f"optimizers step it: it would not be trained. Received: {name} of "
                f"{type(module).__name__}, shape (1,). Give it shape (1, 1), or use 'mirrored' or "
                "zero=1."
            )


def check_runs_first(module: nn.Module) -> None:
    """Refuse what makes a weight from others and buffers: it runs whenever the weight is looked at,
    so before the whole model; FSDP2 then takes it for a model of its own."""
    for name, part in module.named_modules():
        if isinstance(part, ParametrizationList) and any(True for _ in part.buffers()):
            kinds = ", ".join(type(each).__name__ for each in part)
            raise Unsupported(
                "A parametrization with buffers runs before the model that it is part of, and "
                f"FSDP2 refuses that. Received: {name or 'a weight'} ({kinds}). Use 'mirrored', or "
                "split='tensor', which leave it whole."
            )


def check_all_sharded(module: nn.Module) -> None:
    for name, parameter in module.named_parameters():
        if not isinstance(parameter, DTensor):
            raise Unsupported(
                "A parameter is in no module that can gather it. Received: "
                f"{name} of {type(module).__name__}. It must be in a module with a forward pass, "
                "when that is split and not later; or use 'mirrored'."
            )
