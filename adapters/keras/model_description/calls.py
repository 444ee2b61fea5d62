"""Calls of a model's layers on a batch: their order, what goes in and out of each, what lies
between those with parameters, and where a map is flattened on its way."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from math import prod
from typing import Any, final

import keras
from keras import layers as _layers
from keras import tree

from dream._errors import Unsupported
from dream.adapters.keras import hooks, private
from dream.model_description.steps import Shape

_BEFORE = (
    _layers.Dense, _layers.Conv1D, _layers.Conv2D, _layers.Conv3D,
    _layers.DepthwiseConv1D, _layers.DepthwiseConv2D, _layers.Conv1DTranspose,
    _layers.Conv2DTranspose, _layers.Conv3DTranspose,
)  # fmt: skip
"""Layers that have an activation of their own: it is another framework's next layer."""


@final
@dataclass(eq=False)
class LayerCall:
    """A layer's call. given, gave: its first input and output; before: the output before the
    layer's own activation. inner: a call in the midst of another layer's that is no model."""

    layer: Any
    given: Any
    gave: Any = None
    before: Any = None
    inner: bool = False

    @property
    def whole(self) -> bool:
        """Whether a tensor went in and one came out."""
        return self.given is not None and self.gave is not None


@contextmanager
def recorded() -> Iterator[list[LayerCall]]:
    """The calls that layers have while the block lasts, in their order."""
    calls: list[LayerCall] = []
    whole: list[Any] = []
    original = _layers.Layer.__call__

    def call(self: Any, *args: Any, **kwargs: Any) -> Any:
        given = _first([*args, *kwargs.values()])
        made = LayerCall(self, given, inner=any(map(_closed, whole)))
        calls.append(made)
        whole.append(self)
        try:
            with _before_activation(self, made):
                gave = original(self, *args, **kwargs)
        finally:
            whole.pop()
        made.gave = _first(gave)
        if made.before is None:
            made.before = _given_to_activation(made, calls)
        return gave

    with hooks.replaced(_layers.Layer, "__call__", call):
        yield calls


def _closed(layer: Any) -> bool:
    """Whether what a layer calls is its own affair: Keras's layers know theirs, a user's are only
    a name for those in them."""
    own = type(layer).__module__.partition(".")[0] == "keras"
    return own and not isinstance(layer, keras.Model)


@contextmanager
def _before_activation(layer: Any, call: LayerCall) -> Iterator[None]:
    activation = layer.activation if isinstance(layer, _BEFORE) else None
    if activation is None or isinstance(activation, _layers.Layer):
        yield
        return
    layer.activation = _kept(activation, call)
    try:
        yield
    finally:
        layer.activation = activation


def _kept(activation: Callable[..., Any], call: LayerCall) -> Callable[..., Any]:
    def act(x: Any) -> Any:
        call.before = x
        return activation(x)

    return act


def _given_to_activation(call: LayerCall, calls: list[LayerCall]) -> Any:
    """Where the activation is a layer, what that was given; else what the call gave."""
    activation = call.layer.activation if isinstance(call.layer, _BEFORE) else None
    return next((c.given for c in reversed(calls) if c.layer is activation), call.gave)


def _first(nest: Any) -> Any:
    return next((x for x in tree.flatten(nest) if hasattr(x, "shape")), None)


_SHOWN = ("activation", "pool_size", "strides", "padding", "data_format", "rate", "axis",
          "negative_slope", "alpha", "target_shape", "dims", "size")  # fmt: skip
"""Settings that are shown of a layer without parameters."""


def between(calls: Sequence[LayerCall], layers: Mapping[str, Any]) -> dict[str, list[str]]:
    """Tell by the name of a layer of `layers` what was called since the one before it; "" for what
    came after the last."""
    names = {id(layer): name for name, layer in layers.items()}
    found: dict[str, list[str]] = {}
    since: list[str] = []
    for call in calls:
        layer = call.layer
        if id(layer) in names:
            found.setdefault(names[id(layer)], since)
            since = _own_activation(layer)
        elif not layer.weights and not isinstance(layer, keras.Model) and not call.inner:
            since.append(_words(layer))
    found[""] = since
    return found


def _own_activation(layer: Any) -> list[str]:
    activation = getattr(layer, "activation", None)
    plain = activation is None or activation is keras.activations.linear
    name = getattr(activation, "__name__", activation)
    return [] if plain or hasattr(layer, "cell") else [f"activation={name}"]


def _words(layer: Any) -> str:
    config = layer.get_config()
    shown = [f"{key}={config[key]!r}" for key in _SHOWN if config.get(key) is not None]
    return f"{type(layer).__name__}({', '.join(shown)})"


_NORMS = (_layers.BatchNormalization, _layers.LayerNormalization, _layers.RMSNormalization)
_SAME_ORDER = (
    _layers.Activation, _layers.Dropout, _layers.ReLU, _layers.LeakyReLU, _layers.ELU,
    _layers.GaussianNoise, _layers.GaussianDropout, _layers.AlphaDropout, _layers.Identity,
    _layers.Add, _layers.Subtract, _layers.Multiply, _layers.Average, _layers.Maximum,
    _layers.Minimum,
)  # fmt: skip
"""With the norms: layers that leave each feature in its place."""
_PERMUTED = "permuted"
"""The format of a map whose axes a layer has turned: flattened, it has the order it was given."""


@final
class Orders:
    """Follows maps with channels last along the calls: where one was flattened on its way to a
    layer, or will be opened from what it gives. There the order of the layer's features is not
    torch's.

    flattened, unflattened: by the id of a layer, the map's shape (*space, channels).
    Raises Unsupported where a flattened map goes into a layer among other features.
    """

    def __init__(self, calls: Sequence[LayerCall]) -> None:
        self.flattened: dict[int, Shape] = {}
        self.unflattened: dict[int, Shape] = {}
        self._known: dict[int, Shape] = {}
        self._formats: dict[int, str] = {}
        self._column: list[Any] = []
        self._last: LayerCall | None = None
        self._recent: Shape = ()
        for call in calls:
            if not call.inner and not _holds_others(call.layer) and call.whole:
                self._visit(call)
                self._last = call

    def _visit(self, call: LayerCall) -> None:
        layer, rank = call.layer, len(call.given.shape)
        if isinstance(layer, _layers.Flatten) or _closes(layer):
            self._note(call, self._map(call))
        elif _opens(layer, call):
            for each in self._column:
                self.unflattened[id(each)] = tuple(call.gave.shape[1:])
            self._column = []
        elif isinstance(layer, _layers.Dense) and rank == 2:
            self._mark(call)
            self._note(call, ())
            self._column = [layer]
        elif isinstance(layer, _NORMS) and rank == 2:
            self._note(call, self._mark(call))
            self._column.append(layer)
        elif isinstance(layer, _SAME_ORDER):
            self._known[id(call.gave)] = self._shape_of(call)
            self._formats[id(call.gave)] = self._format(call)
        else:
            self._pass_on(call)

    def _pass_on(self, call: LayerCall) -> None:
        if isinstance(call.layer, _layers.Concatenate):
            self._refuse_among_others(call, self._known.get(id(call.given), ()))
        self._note(call, ())
        self._column = []
        same = isinstance(call.layer, (*_NORMS, _layers.Concatenate))
        self._formats[id(call.gave)] = self._format(call) if same else _format_of(call.layer)

    def _note(self, call: LayerCall, shape: Shape) -> None:
        self._known[id(call.gave)] = self._recent = shape

    def _mark(self, call: LayerCall) -> Shape:
        shape = self._shape_of(call)
        if shape and prod(shape) != call.given.shape[-1]:
            self._refuse_among_others(call, shape)
        if shape:
            self.flattened[id(call.layer)] = shape
        return shape

    def _refuse_among_others(self, call: LayerCall, shape: Shape) -> None:
        if shape and shape[-1] > 1 and prod(shape[:-1]) > 1:
            raise Unsupported(
                "A flattened map goes on among other features, whose order in torch is then "
                f"unknown. Received: a map of {shape} before {call.layer.name!r}. Put a Dense "
                "right behind the Flatten."
            )

    def _shape_of(self, call: LayerCall) -> Shape:
        """The map whose flattening goes into a call; () for none."""
        known = self._known.get(id(call.given))
        if known is not None:
            return known
        if len(call.given.shape) != 2:
            return ()
        last = self._last  # an operation that is no layer lies between
        if last is not None and len(last.gave.shape) >= 4:
            opened = tuple(last.gave.shape[1:])
            fits = prod(opened) == call.given.shape[-1]
            return self._channels_last(opened, self._format(call)) if fits else ()
        return self._recent

    def _map(self, call: LayerCall) -> Shape:
        """The map that a Flatten closes, channels last; () where its order is torch's."""
        shape = tuple(call.given.shape[1:])
        if len(shape) < 2:
            return self._shape_of(call)
        if getattr(call.layer, "data_format", None) == "channels_first":
            return (*shape[1:], shape[0])  # Keras's Flatten turns these
        return self._channels_last(shape, self._format(call))

    def _channels_last(self, shape: Shape, known: str) -> Shape:
        """The shape, if it is a map's: of three dims or more where nothing else is known."""
        default = keras.config.image_data_format() if len(shape) > 2 else ""
        return shape if (known or default) == "channels_last" else ()

    def _format(self, call: LayerCall) -> str:
        """The data format of the map that goes into a call; "" for what is none, as a sequence."""
        known = self._formats.get(id(call.given))
        if known is None and self._last is not None:
            known = self._formats.get(id(self._last.gave))
        return known or ""


def _holds_others(layer: Any) -> bool:
    """Whether it is but a name for the layers in it, which have calls of their own."""
    own = type(layer).__module__.partition(".")[0] == "keras"
    wrappers = (keras.Model, _layers.Bidirectional, _layers.TimeDistributed)
    return isinstance(layer, wrappers) or (not own and bool(private.children(layer)))


def _format_of(layer: Any) -> str:
    """The data format of what comes out, if that is a map: convolutions and poolings tell."""
    if isinstance(layer, _layers.Permute):
        return _PERMUTED
    closed = type(layer).__name__.startswith("Global")
    return "" if closed else str(getattr(layer, "data_format", None) or "")


def _closes(layer: Any) -> bool:
    return isinstance(layer, _layers.Reshape) and len(layer.target_shape) == 1


def _opens(layer: Any, call: LayerCall) -> bool:
    return isinstance(layer, _layers.Reshape) and len(call.given.shape) == 2 < (
        len(call.gave.shape) - 1
    )
