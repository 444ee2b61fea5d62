"""torch's attention and recurrent layers: packed projections, and the order of gates."""

from __future__ import annotations

from typing import Any

import torch

from dream._errors import Unsupported
from dream.adapters.pytorch.model_description.found import Found, part, whole
from dream.model_description.layers import Part
from dream.model_description.steps import Permute, Reorder, Reshape, Shape, Steps


def attention(module: Any) -> list[Found]:
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
    return [Found("attention", parts, {"dropout": module.dropout},
                  time_first=not module.batch_first)]  # fmt: skip


_GATES = {"LSTM": ("lstm", 4), "GRU": ("gru", 3), "RNN": ("rnn", 1)}


def recurrent(module: Any) -> list[Found]:
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
        Found(
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


def cell(module: Any) -> list[Found]:
    kind, gates = _GATES[type(module).__name__.removesuffix("Cell")]
    settings = _recurrent_settings(kind, getattr(module, "nonlinearity", "tanh"))
    return [Found(kind, _recurrent_parts(module, gates, ""), settings, records=False)]


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
