"""Each torch module that has a like in Keras: its parameters' roles, and how their layout becomes
the canonical one."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import nn

from dream.adapters.pytorch.model_description import sequences
from dream.adapters.pytorch.model_description.found import Found, part, whole
from dream.model_description.steps import Permute


def describe(module: nn.Module) -> list[Found] | None:
    """The layers that a module is; None where it is of no known kind."""
    for kind, describer in _DESCRIBERS.items():
        if isinstance(module, kind):
            return describer(module)
    return None


def _linear(module: Any) -> list[Found]:
    return [Found("dense", {"weight": part(module.weight, "kernel", Permute((1, 0)))}
                  | whole(module, bias="bias"))]  # fmt: skip


def _conv(module: Any) -> list[Found]:
    rank = module.weight.ndim - 2
    space = tuple(range(2, rank + 2))
    settings = {
        "strides": tuple(module.stride),
        "padding": _padding(module.padding),
        "dilation": tuple(module.dilation),
        "groups": module.groups,
        "padding_mode": module.padding_mode,
    }
    kind = f"conv{rank}d"
    if module.transposed:
        kind = f"conv_transpose{rank}d"
        settings["output_padding"] = tuple(module.output_padding)
    # (out, in, *space), transposed (in, out, *space); Keras: (*space, in, out), (*space, out, in)
    kernel = part(module.weight, "kernel", Permute((*space, 1, 0)))
    parts = {"weight": kernel} | whole(module, bias="bias")
    return [Found(kind, parts, settings, channels_first=True)]


def _padding(padding: Any) -> Any:
    return padding if isinstance(padding, str) else tuple((side, side) for side in padding)


def _batch_norm(module: Any) -> list[Found]:
    kept = "cumulative" if module.momentum is None else 1 - module.momentum
    return [
        Found(
            "batch_norm",
            whole(
                module,
                weight="gamma",
                bias="beta",
                running_mean="moving_mean",
                running_var="moving_variance",
            ),
            {"epsilon": module.eps, "momentum": kept},
            channels_first=True,
        )
    ]


def _layer_norm(module: Any) -> list[Found]:
    parts = whole(module, weight="gamma", bias="beta")
    return [Found("layer_norm", parts, {"epsilon": module.eps})]


def _rms_norm(module: Any) -> list[Found]:
    eps = torch.finfo(module.weight.dtype).eps if module.eps is None else module.eps
    return [Found("rms_norm", whole(module, weight="gamma"), {"epsilon": eps})]


def _group_norm(module: Any) -> list[Found]:
    settings = {"epsilon": module.eps, "groups": module.num_groups}
    parts = whole(module, weight="gamma", bias="beta")
    return [Found("group_norm", parts, settings, channels_first=True)]


def _embedding(module: Any) -> list[Found]:
    return [Found("embedding", whole(module, weight="embeddings"))]


def _prelu(module: Any) -> list[Found]:
    return [Found("prelu", whole(module, weight="alpha"), channels_first=True)]


def own_parameters(module: nn.Module) -> Iterator[str]:
    """The names of a module's own parameters, its children's left out."""
    return (name for name, value in module.named_parameters(recurse=False) if value is not None)


_CONVS = (nn.Conv1d, nn.Conv2d, nn.Conv3d)
_TRANSPOSED = (nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d)
_NORMS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d, nn.SyncBatchNorm)
_DESCRIBERS: dict[tuple[type[nn.Module], ...], Callable[[Any], list[Found]]] = {
    (nn.Linear,): _linear,
    (*_CONVS, *_TRANSPOSED): _conv,
    _NORMS: _batch_norm,
    (nn.LayerNorm,): _layer_norm,
    (nn.RMSNorm,): _rms_norm,
    (nn.GroupNorm,): _group_norm,
    (nn.Embedding,): _embedding,
    (nn.PReLU,): _prelu,
    (nn.MultiheadAttention,): sequences.attention,
    (nn.LSTM, nn.GRU, nn.RNN): sequences.recurrent,
    (nn.LSTMCell, nn.GRUCell, nn.RNNCell): sequences.cell,
}
