"""Each Keras layer that has a like in torch: its variables' roles, and how their layout becomes
the canonical one, which is mostly their own."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, final

import keras
from keras import layers

from dream._errors import Unsupported
from dream.adapters.keras import private
from dream.model_description.layers import Part
from dream.model_description.steps import Reshape, Shape


@final
@dataclass
class Found:
    """A layer of a known kind, or one of several that a Keras layer is elsewhere.

    parts: for each of its variables, by its name below the layer. below: its name there, where
    there are several: what goes from one to the next is not seen then.
    """

    kind: str
    parts: Mapping[str, tuple[Part, ...]]
    settings: dict[str, Any] = field(default_factory=dict)
    channels_first: bool = False
    below: str = ""


Describer = Callable[[Any], Sequence[Found]]


def variables(layer: Any) -> dict[str, Any]:
    """Return a layer's variables by their names below it: those of inner layers behind these'
    names."""
    found = dict(own_variables(layer))
    for child in private.children(layer):
        found |= {f"{child.name}/{name}": v for name, v in variables(child).items()}
    return found


def own_variables(layer: Any) -> list[tuple[str, Any]]:
    """Return (name, variable) of the layer itself."""
    inner = {id(v) for child in private.children(layer) for v in child.weights}
    found: dict[str, Any] = {}
    for variable in layer.weights:
        if id(variable) not in inner:
            name = variable.name
            found[f"{name}_{len(found)}" if name in found else name] = variable
    return list(found.items())


def whole(layer: Any, *names: str, **roles: str) -> dict[str, tuple[Part, ...]]:
    """Return every variable of the layer as it is. Raises Unsupported for one with no role."""
    roles = {name: name for name in names} | roles
    found = variables(layer)
    strange = sorted(found.keys() - roles.keys())
    if strange:
        raise Unsupported(
            f"This layer has variables that no other framework's has. Received: {layer.name!r}, a "
            f"{type(layer).__name__} with {', '.join(strange)}. Remove what made them "
            "(quantization, LoRA, renorm, a gate)."
        )
    return {name: (Part(roles[name], tuple(variable.shape)),) for name, variable in found.items()}


def describe(layer: Any) -> Sequence[Found]:
    """Return the layer as known kinds, in the order of their calls; nothing where it is of none."""
    describer = next((d for kind, d in _DESCRIBERS.items() if isinstance(layer, kind)), None)
    return () if describer is None else describer(layer)


def _plain(kind: str, *names: str, settings: tuple[str, ...] = (), **roles: str) -> Describer:
    """Describe a layer whose variables lie as they are, and whose settings are its attributes."""

    def describe_plain(layer: Any) -> Sequence[Found]:
        known = {name: getattr(layer, name) for name in settings}
        first = kind in ("batch_norm", "group_norm") and layer.axis == 1
        return [Found(kind, whole(layer, *names, **roles), known, first)]

    return describe_plain


def _conv(layer: Any, kind: str = "conv", groups: int | None = None) -> Sequence[Found]:
    groups = layer.groups if groups is None else groups
    return [_conv_of(layer, whole(layer, "kernel", "bias"), groups, kind)]


def _conv_of(
    layer: Any, parts: Mapping[str, tuple[Part, ...]], groups: int, kind: str = "conv"
) -> Found:
    rank = layer.rank
    settings = {
        "strides": _each(layer.strides, rank),
        "padding": layer.padding,
        "dilation": _each(layer.dilation_rate, rank),
        "padding_mode": "zeros",
        "groups": groups,
    }
    return Found(f"{kind}{rank}d", parts, settings, layer.data_format == "channels_first")


def _depthwise(layer: Any) -> Sequence[Found]:
    """Describe a convolution with as many groups as channels."""
    parts = whole(layer, "kernel", "bias")
    return [_by_channel(layer, parts, "kernel")]


def _by_channel(layer: Any, parts: dict[str, tuple[Part, ...]], kernel: str) -> Found:
    shape: Shape = parts[kernel][0].shape
    *space, channels, each = shape
    closed = Reshape(shape, (*space, 1, channels * each))
    return _conv_of(layer, {**parts, kernel: (Part("kernel", shape, (closed,)),)}, channels)


def _separable(layer: Any) -> Sequence[Found]:
    """Describe a convolution of each channel, and one of a pixel that mixes them."""
    parts = whole(layer, "bias", depthwise_kernel="kernel", pointwise_kernel="kernel")
    first = {"depthwise_kernel": parts.pop("depthwise_kernel")}
    depthwise = _by_channel(layer, first, "depthwise_kernel")
    pointwise = _conv_of(layer, parts, 1)
    ones = (1,) * layer.rank
    pointwise.settings |= {"strides": ones, "dilation": ones, "padding": "valid"}
    depthwise.below, pointwise.below = "depthwise", "pointwise"
    return [depthwise, pointwise]


def _each(value: Any, rank: int) -> tuple[int, ...]:
    return (value,) * rank if isinstance(value, int) else tuple(value)


def _prelu(layer: Any) -> Sequence[Found]:
    parts = whole(layer, "alpha")
    shape: Shape = parts["alpha"][0].shape
    if all(size == 1 for size in shape[:-1]):
        parts["alpha"] = (Part("alpha", shape, (Reshape(shape, shape[-1:]),)),)
    return [Found("prelu", parts)]


def _attention(layer: Any) -> Sequence[Found]:
    inner = {"query": layer.query_dense, "key": layer.key_dense, "value": layer.value_dense,
             "output": layer.output_dense}  # fmt: skip
    roles = {
        f"{dense.name}/{name}": f"{role}_{name}"
        for role, dense in inner.items()
        for name in ("kernel", "bias")
    }
    return [Found("attention", whole(layer, **roles), {"dropout": layer.dropout})]


def _gru(layer: Any) -> Sequence[Found]:
    (found,) = _recurrent(layer, "gru")
    name = _cell_name(layer, "bias")
    bias = found.parts.get(name)
    if bias is not None and len(bias[0].shape) == 2:  # reset_after: (2, 3 units)
        _, width = bias[0].shape
        row = Reshape((1, width), (width,))
        rows = [Part(role, (1, width), (row,)) for role in ("input_bias", "recurrent_bias")]
        found.parts = {**found.parts, name: tuple(rows)}
    return [found]


def _recurrent(layer: Any, kind: str) -> Sequence[Found]:
    settings: dict[str, Any] = {}
    names = ("kernel", "recurrent_kernel", "bias")
    parts = whole(layer, **{_cell_name(layer, name): name for name in names})
    cell = getattr(layer, "cell", layer)
    for name in ("activation", "recurrent_activation"):
        if hasattr(cell, name):
            settings[name] = keras.activations.serialize(getattr(cell, name))
    if cell is not layer:
        settings["reverse"] = layer.go_backwards
    return [Found(kind, parts, settings)]


def _cell_name(layer: Any, name: str) -> str:
    cell = getattr(layer, "cell", None)
    return name if cell is None else f"{cell.name}/{name}"


_DESCRIBERS: dict[tuple[type, ...], Describer] = {
    (layers.Dense,): _plain("dense", "kernel", "bias"),
    (layers.DepthwiseConv1D, layers.DepthwiseConv2D): _depthwise,
    (layers.SeparableConv1D, layers.SeparableConv2D): _separable,
    (layers.Conv1D, layers.Conv2D, layers.Conv3D): _conv,
    (layers.Conv1DTranspose, layers.Conv2DTranspose, layers.Conv3DTranspose): (
        lambda layer: _conv(layer, "conv_transpose", groups=1)
    ),
    (layers.BatchNormalization,): _plain(
        "batch_norm", "gamma", "beta", "moving_mean", "moving_variance",
        settings=("epsilon", "momentum"),
    ),
    (layers.LayerNormalization,): _plain("layer_norm", "gamma", "beta", settings=("epsilon",)),
    (layers.RMSNormalization,): _plain("rms_norm", settings=("epsilon",), scale="gamma"),
    (layers.GroupNormalization,): _plain(
        "group_norm", "gamma", "beta", settings=("epsilon", "groups")
    ),
    (layers.Embedding,): _plain("embedding", "embeddings"),
    (layers.PReLU,): _prelu,
    (layers.MultiHeadAttention,): _attention,
    (layers.LSTM, layers.LSTMCell): lambda layer: _recurrent(layer, "lstm"),
    (layers.GRU, layers.GRUCell): _gru,
    (layers.SimpleRNN, layers.SimpleRNNCell): lambda layer: _recurrent(layer, "rnn"),
}  # fmt: skip
