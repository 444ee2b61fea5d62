"""Where a map with channels last was flattened on its way to a layer, or will be opened from what
it gives: there the order of the layer's features is not torch's."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any, final

import keras

from dream._errors import Unsupported
from dream.adapters.keras import private
from dream.adapters.keras.model_description.calls import Call
from dream.model_description.steps import Shape

_layers = keras.layers
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
    """What a walk along the calls knows.

    flattened, unflattened: by the id of a layer, the map's shape (*space, channels).
    Raises Unsupported where a flattened map goes into a layer among other features.
    """

    def __init__(self, calls: Sequence[Call]) -> None:
        self.flattened: dict[int, Shape] = {}
        self.unflattened: dict[int, Shape] = {}
        self._known: dict[int, Shape] = {}
        self._formats: dict[int, str] = {}
        self._column: list[Any] = []
        self._last: Call | None = None
        self._recent: Shape = ()
        for call in calls:
            if not call.inner and not _holds_others(call.layer) and call.whole:
                self._visit(call)
                self._last = call

    def _visit(self, call: Call) -> None:
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

    def _pass_on(self, call: Call) -> None:
        if isinstance(call.layer, _layers.Concatenate):
            self._refuse_among_others(call, self._known.get(id(call.given), ()))
        self._note(call, ())
        self._column = []
        same = isinstance(call.layer, (*_NORMS, _layers.Concatenate))
        self._formats[id(call.gave)] = self._format(call) if same else _format_of(call.layer)

    def _note(self, call: Call, shape: Shape) -> None:
        self._known[id(call.gave)] = self._recent = shape

    def _mark(self, call: Call) -> Shape:
        shape = self._shape_of(call)
        if shape and prod(shape) != call.given.shape[-1]:
            self._refuse_among_others(call, shape)
        if shape:
            self.flattened[id(call.layer)] = shape
        return shape

    def _refuse_among_others(self, call: Call, shape: Shape) -> None:
        if shape and shape[-1] > 1 and prod(shape[:-1]) > 1:
            raise Unsupported(
                "A flattened map goes on among other features, whose order in torch is then "
                f"unknown. Received: a map of {shape} before {call.layer.name!r}. Put a Dense "
                "right behind the Flatten."
            )

    def _shape_of(self, call: Call) -> Shape:
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

    def _map(self, call: Call) -> Shape:
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

    def _format(self, call: Call) -> str:
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


def _opens(layer: Any, call: Call) -> bool:
    return isinstance(layer, _layers.Reshape) and len(call.given.shape) == 2 < (
        len(call.gave.shape) - 1
    )
