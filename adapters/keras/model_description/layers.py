"""Each Keras layer that has a like in torch: its variables' roles, and how their layout becomes
the canonical one, which is mostly their own."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import keras

from dream.adapters.keras.model_description import sequences
from dream.adapters.keras.model_description.found import Found, whole
from dream.model_description.layers import Part
from dream.model_description.steps import Reshape, Shape

layers = keras.layers


def describe(layer: Any) -> Found | None:
    """None where it is of no known kind."""
    for kind, describer in _DESCRIBERS.items():
        if isinstance(layer, kind):
            return describer(layer)
    return None


def _dense(layer: Any) -> Found:
    return Found("dense", whole(layer, "kernel", "bias"))


def _conv(layer: Any) -> Found:
    settings = _conv_settings(layer, layer.rank) | {"groups": layer.groups}
    return Found(f"conv{layer.rank}d", whole(layer, "kernel", "bias"), settings, _first(layer))


def _conv_transpose(layer: Any) -> Found:
    settings = _conv_settings(layer, layer.rank) | {"groups": 1}
    parts = whole(layer, "kernel", "bias")
    return Found(f"conv_transpose{layer.rank}d", parts, settings, _first(layer))


def _depthwise(layer: Any) -> Found:
    """A convolution with as many groups as channels."""
    parts = whole(layer, "kernel", "bias")
    shape: Shape = parts["kernel"][0].shape
    *space, channels, each = shape
    closed = Reshape(shape, (*space, 1, channels * each))
    parts["kernel"] = (Part("kernel", shape, (closed,)),)
    settings = _conv_settings(layer, layer.rank) | {"groups": channels}
    return Found(f"conv{layer.rank}d", parts, settings, _first(layer))


def _conv_settings(layer: Any, rank: int) -> dict[str, Any]:
    return {
        "strides": _each(layer.strides, rank),
        "padding": layer.padding,
        "dilation": _each(layer.dilation_rate, rank),
        "padding_mode": "zeros",
    }


def _each(value: Any, rank: int) -> tuple[int, ...]:
    return (value,) * rank if isinstance(value, int) else tuple(value)


def _first(layer: Any) -> bool:
    return bool(layer.data_format == "channels_first")


def _batch_norm(layer: Any) -> Found:
    parts = whole(layer, "gamma", "beta", "moving_mean", "moving_variance")
    settings = {"epsilon": layer.epsilon, "momentum": layer.momentum}
    return Found("batch_norm", parts, settings, channels_first=layer.axis == 1)


def _layer_norm(layer: Any) -> Found:
    return Found("layer_norm", whole(layer, "gamma", "beta"), {"epsilon": layer.epsilon})


def _rms_norm(layer: Any) -> Found:
    return Found("rms_norm", whole(layer, scale="gamma"), {"epsilon": layer.epsilon})


def _group_norm(layer: Any) -> Found:
    settings = {"epsilon": layer.epsilon, "groups": layer.groups}
    return Found("group_norm", whole(layer, "gamma", "beta"), settings, layer.axis == 1)


def _embedding(layer: Any) -> Found:
    return Found("embedding", whole(layer, "embeddings"))


def _prelu(layer: Any) -> Found:
    parts = whole(layer, "alpha")
    shape: Shape = parts["alpha"][0].shape
    if all(size == 1 for size in shape[:-1]):
        parts["alpha"] = (Part("alpha", shape, (Reshape(shape, shape[-1:]),)),)
    return Found("prelu", parts)


_DEPTHWISE = (layers.DepthwiseConv1D, layers.DepthwiseConv2D)
_CONVS = (layers.Conv1D, layers.Conv2D, layers.Conv3D)
_TRANSPOSED = (layers.Conv1DTranspose, layers.Conv2DTranspose, layers.Conv3DTranspose)
_DESCRIBERS: dict[tuple[type, ...], Callable[[Any], Found]] = {
    (layers.Dense,): _dense,
    _DEPTHWISE: _depthwise,
    _CONVS: _conv,
    _TRANSPOSED: _conv_transpose,
    (layers.BatchNormalization,): _batch_norm,
    (layers.LayerNormalization,): _layer_norm,
    (layers.RMSNormalization,): _rms_norm,
    (layers.GroupNormalization,): _group_norm,
    (layers.Embedding,): _embedding,
    (layers.PReLU,): _prelu,
    (layers.MultiHeadAttention,): sequences.attention,
    (layers.LSTM, layers.LSTMCell): sequences.lstm,
    (layers.GRU, layers.GRUCell): sequences.gru,
    (layers.SimpleRNN, layers.SimpleRNNCell): sequences.rnn,
}
