"""Each torch module that has a like in Keras: its parameters' roles, and how their layout becomes
the canonical one."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, final

import torch
from torch import nn

from dream._errors import Unsupported
from dream.model_description.layers import Part
from dream.model_description.steps import Permute, Reorder, Reshape, Shape, Steps


@final
@dataclass
class LayerMatch:
    """A layer of a module. parts: the module's own name of a parameter or buffer -> its parts."""

    kind: str
    parts: Mapping[str, tuple[Part, ...]]
    settings: dict[str, Any] = field(default_factory=dict)
    suffix: str = ""
    channels_first: bool = False
    time_first: bool = False
    records: bool = True


def whole(module: Any, _prefix: str = "", **roles: str) -> dict[str, tuple[Part, ...]]:
    """Those of the named parameters that the module has, as they are."""
    return {
        f"{_prefix}{name}": part(value, role)
        for name, role in roles.items()
        for value in (getattr(module, name),)
        if value is not None
    }


def part(value: torch.Tensor, role: str, *steps: Any) -> tuple[Part, ...]:
    return (Part(role, tuple(value.shape), steps),)


def attention(module: Any) -> list[LayerMatch]:
    if module.bias_k is not None or module.add_zero_attn:
        raise Unsupported(
            "Keras's MultiHeadAttention has no add_bias_kv or add_zero_attn. Received: "
            f"{module!r}. Leave them out of the torch model."
        )
    heads, size = module.num_heads, module.head_dim
    width = module.embed_dim

    def projection(role: str, inputs: int) -> Part:
        opened = Reshape((width, inputs), (heads, size, inputs))
        return Part(role, (width, inputs), (opened, Permute((2, 0, 1))))

    roles = ("query", "key", "value")
    parts: dict[str, tuple[Part, ...]] = {}
    if module.in_proj_weight is not None:
        packed = tuple(projection(f"{role}_kernel", width) for role in roles)
        parts["in_proj_weight"] = packed
    else:
        for role, inputs in zip(roles, (width, module.kdim, module.vdim), strict=True):
            parts[f"{role[0]}_proj_weight"] = (projection(f"{role}_kernel", inputs),)
    if module.in_proj_bias is not None:
        opened = Reshape((width,), (heads, size))
        parts["in_proj_bias"] = tuple(Part(f"{r}_bias", (width,), (opened,)) for r in roles)
        parts |= whole(module.out_proj, "out_proj.", bias="output_bias")
    out = (Permute((1, 0)), Reshape((width, width), (heads, size, width)))
    parts["out_proj.weight"] = part(module.out_proj.weight, "output_kernel", *out)
    return [LayerMatch("attention", parts, {"dropout": module.dropout},
                  time_first=not module.batch_first)]  # fmt: skip


_GATES = {"LSTM": ("lstm", 4), "GRU": ("gru", 3), "RNN": ("rnn", 1)}


def recurrent(module: Any) -> list[LayerMatch]:
    if module.proj_size:
        raise Unsupported(
            f"Keras's LSTM has no projection. Received: proj_size={module.proj_size}. "
            "Use a Linear behind an LSTM without one, in both models."
        )
    kind, gates = _GATES[module.mode.partition("_")[0]]
    settings = _recurrent_settings(kind, getattr(module, "nonlinearity", "tanh"))
    both = (False, True) if module.bidirectional else (False,)
    several = module.num_layers > 1 or module.bidirectional
    return [
        LayerMatch(
            kind,
            _recurrent_parts(module, gates, f"_l{level}{'_reverse' if reverse else ''}"),
            {**settings, "reverse": reverse},
            suffix=f".l{level}{'_reverse' if reverse else ''}" if several else "",
            time_first=not module.batch_first,
            records=not several,
        )
        for level in range(module.num_layers)
        for reverse in both
    ]


def cell(module: Any) -> list[LayerMatch]:
    kind, gates = _GATES[type(module).__name__.removesuffix("Cell")]
    settings = _recurrent_settings(kind, getattr(module, "nonlinearity", "tanh"))
    return [LayerMatch(kind, _recurrent_parts(module, gates, ""), settings, records=False)]


def _recurrent_settings(kind: str, nonlinearity: str) -> dict[str, Any]:
    if kind == "rnn":
        return {"activation": nonlinearity}
    return {"activation": "tanh", "recurrent_activation": "sigmoid"}


def _recurrent_parts(module: Any, gates: int, suffix: str) -> dict[str, tuple[Part, ...]]:
    kernels = {f"weight_ih{suffix}": "kernel", f"weight_hh{suffix}": "recurrent_kernel"}
    biases = {f"bias_ih{suffix}": "input_bias", f"bias_hh{suffix}": "recurrent_bias"}
    parts = {
        name: part(value, role, *_gate_order(value, gates), Permute((1, 0)))
        for name, role in kernels.items()
        for value in (getattr(module, name),)
    }
    for name, role in biases.items():
        value = getattr(module, name, None)
        if value is not None and gates == 3:
            parts[name] = part(value, role, *_gate_order(value, gates))
        elif value is not None:
            parts[name] = (Part("bias", tuple(value.shape), summed=True),)
    return parts


def _gate_order(value: torch.Tensor, gates: int) -> Steps:
    """GRU: torch has reset, update, new; Keras update, reset, new. LSTMs are alike."""
    if gates != 3:
        return ()
    shape = tuple(value.shape)
    opened: Shape = (3, shape[0] // 3, *shape[1:])
    return (Reshape(shape, opened), Reorder(0, (1, 0, 2)), Reshape(opened, shape))


def describe(module: nn.Module) -> list[LayerMatch] | None:
    """The layers that a module is; None where it is of no known kind."""
    for kind, describer in _DESCRIBERS.items():
        if isinstance(module, kind):
            return describer(module)
    return None


def _linear(module: Any) -> list[LayerMatch]:
    return [LayerMatch("dense", {"weight": part(module.weight, "kernel", Permute((1, 0)))}
                  | whole(module, bias="bias"))]  # fmt: skip


def _conv(module: Any) -> list[LayerMatch]:
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
    return [LayerMatch(kind, parts, settings, channels_first=True)]


def _padding(padding: Any) -> Any:
    return padding if isinstance(padding, str) else tuple((side, side) for side in padding)


def _batch_norm(module: Any) -> list[LayerMatch]:
    kept = "cumulative" if module.momentum is None else 1 - module.momentum
    return [
        LayerMatch(
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


def _layer_norm(module: Any) -> list[LayerMatch]:
    parts = whole(module, weight="gamma", bias="beta")
    return [LayerMatch("layer_norm", parts, {"epsilon": module.eps})]


def _rms_norm(module: Any) -> list[LayerMatch]:
    eps = torch.finfo(module.weight.dtype).eps if module.eps is None else module.eps
    return [LayerMatch("rms_norm", whole(module, weight="gamma"), {"epsilon": eps})]


def _group_norm(module: Any) -> list[LayerMatch]:
    settings = {"epsilon": module.eps, "groups": module.num_groups}
    parts = whole(module, weight="gamma", bias="beta")
    return [LayerMatch("group_norm", parts, settings, channels_first=True)]


def _embedding(module: Any) -> list[LayerMatch]:
    return [LayerMatch("embedding", whole(module, weight="embeddings"))]


def _prelu(module: Any) -> list[LayerMatch]:
    return [LayerMatch("prelu", whole(module, weight="alpha"), channels_first=True)]


def own_parameters(module: nn.Module) -> Iterator[str]:
    """The names of a module's own parameters, its children's left out."""
    return (name for name, value in module.named_parameters(recurse=False) if value is not None)


_CONVS = (nn.Conv1d, nn.Conv2d, nn.Conv3d)
_TRANSPOSED = (nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d)
_NORMS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d, nn.SyncBatchNorm)
_DESCRIBERS: dict[tuple[type[nn.Module], ...], Callable[[Any], list[LayerMatch]]] = {
    (nn.Linear,): _linear,
    (*_CONVS, *_TRANSPOSED): _conv,
    _NORMS: _batch_norm,
    (nn.LayerNorm,): _layer_norm,
    (nn.RMSNorm,): _rms_norm,
    (nn.GroupNorm,): _group_norm,
    (nn.Embedding,): _embedding,
    (nn.PReLU,): _prelu,
    (nn.MultiheadAttention,): attention,
    (nn.LSTM, nn.GRU, nn.RNN): recurrent,
    (nn.LSTMCell, nn.GRUCell, nn.RNNCell): cell,
}
