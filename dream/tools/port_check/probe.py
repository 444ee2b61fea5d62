"""Probe a model: facts, values and passes, in the same words for every framework.

The loss is NumPy's for both models, so that the frameworks' own have no part in a difference.
Inputs and outputs are turned between the batch's layout and the model's.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import dataclass, field
from typing import Any, ClassVar, final

import numpy as np
from numpy.typing import NDArray

from dream._errors import ConfigurationError, unknown
from dream.model_description.layers import OTHER, Description, Layer, to_canonical
from dream.model_description.steps import OPS, apply, dense_order, inverse

Array = NDArray[Any]
Loss = Callable[[Sequence[Array]], tuple[float, list[Array]]]
"""Outputs -> the loss and its gradient by each."""


def make_loss(name: str, y: Array | None, seed: int) -> Loss:
    """name: "mean_squared", against y, or where there is none against targets that `seed` draws;
    "cross_entropy", of logits (..., classes) against class numbers y (...)."""
    if name == "mean_squared":
        return lambda outputs: _mean_squared(outputs, _targets(outputs, y, seed))
    if name != "cross_entropy":
        raise unknown("loss", name, ("mean_squared", "cross_entropy"))
    if y is None:
        raise ConfigurationError(
            "cross_entropy needs class numbers. Received: a batch without y. Add y to the file."
        )
    return lambda outputs: _cross_entropy(outputs, y)


def _targets(outputs: Sequence[Array], y: Array | None, seed: int) -> list[Array]:
    if y is None:
        draws = np.random.default_rng(seed)
        return [draws.standard_normal(output.shape) for output in outputs]
    if len(outputs) != 1 or outputs[0].shape != y.shape:
        raise ConfigurationError(
            f"mean_squared needs a target like the output. Received: y {y.shape}, outputs "
            f"{', '.join(str(o.shape) for o in outputs)}. Remove y, or name another loss."
        )
    return [y]


def _mean_squared(outputs: Sequence[Array], targets: Sequence[Array]) -> tuple[float, list[Array]]:
    gaps = [np.asarray(o, float) - t for o, t in zip(outputs, targets, strict=True)]
    value = sum(float(np.mean(gap**2)) for gap in gaps)
    return value, [2 * gap / gap.size for gap in gaps]


def _cross_entropy(outputs: Sequence[Array], y: Array) -> tuple[float, list[Array]]:
    if len(outputs) != 1 or outputs[0].shape[:-1] != y.shape:
        raise ConfigurationError(
            "cross_entropy needs one output of shape (*y.shape, classes). Received: y "
            f"{y.shape}, outputs {', '.join(str(o.shape) for o in outputs)}."
        )
    logits = np.asarray(outputs[0], float)
    logits = logits - logits.max(-1, keepdims=True)
    log_likely = logits - np.log(np.exp(logits).sum(-1, keepdims=True))
    hot = np.arange(logits.shape[-1]) == y[..., None]
    return float(-(log_likely * hot).sum() / y.size), [(np.exp(log_likely) - hot) / y.size]


def turns(rank: int, layers: Sequence[Layer], channels_first: bool) -> bool:
    """Return whether an array of that rank, channels last in the file, is given to the model with
    its channels in axis 1.

    From four dims on, where the framework (`channels_first`) or a layer of the model has maps so.
    With three, where the first layer that is no norm is a convolution over one dim: tokens and
    single-channel images stay.
    """
    if rank >= 4:
        return channels_first or any(layer.channels_first for layer in layers)
    first = next((layer for layer in layers if layer.kind not in _ANYWHERE), None)
    return rank == 3 and first is not None and first.channels_first and first.kind.endswith("1d")


_ANYWHERE = (OTHER, "embedding", "batch_norm", "group_norm", "prelu")
"""Kinds that tell nothing of the layout."""


def turned(x: Array) -> Array:
    """Channels from the last axis to axis 1."""
    return np.ascontiguousarray(np.moveaxis(x, -1, 1))


def turned_back(x: Array) -> Array:
    return np.ascontiguousarray(np.moveaxis(x, 1, -1))


def given_to(layer: Layer, x: Array) -> Array:
    """Return what goes into a layer, in the canonical layout."""
    return _features(_axes(layer, x), layer.flattened)


def given_by(layer: Layer, x: Array) -> Array:
    """Return what comes out of a layer, in the canonical layout."""
    return _features(_axes(layer, x), layer.unflattened)


def _axes(layer: Layer, x: Array) -> Array:
    if layer.channels_first and x.ndim >= 3:
        return turned_back(x)
    return np.swapaxes(x, 0, 1) if layer.time_first and x.ndim == 3 else x


def _features(x: Array, flattened: tuple[int, ...]) -> Array:
    if not flattened or x.shape[-1] != np.prod(flattened):
        return x
    return np.asarray(apply(dense_order(x.shape, x.ndim - 1, flattened), x, OPS))


def as_flattened(layer: Layer, x: Array) -> Array:
    """Undo `given_to` for the order of a flattened map."""
    steps = dense_order(x.shape, x.ndim - 1, layer.flattened)
    return np.asarray(apply(inverse(steps), x, OPS))


Weights = dict[str, dict[str, Array]]
"""By layer and role, canonical."""
Inputs = Mapping[str, Array]
"""By name, as in the batch's file: `x`; or `x0`, `x1`, ... for several by position; or the names
that the model gives them."""


@final
@dataclass(frozen=True, slots=True)
class Facts:
    """A model's facts, before anything is compared.

    between: by a layer's name, what without parameters was called since the layer before it;
        "" for what came after the last.
    dropouts: the rates of the dropout layers, in order.
    given: the shapes that the inputs were given in.
    backend: Keras's, else the framework.
    """

    description: Description
    between: Mapping[str, list[str]]
    dropouts: list[float]
    given: Mapping[str, tuple[int, ...]]
    backend: str


@final
@dataclass(frozen=True, slots=True)
class ModelPasses:
    """A forward and a backward pass without training.

    given, gave: by layer, canonical: channels last, batch first; before a layer's own activation.
    gradients: by layer and role, canonical; None where none flows.
    """

    outputs: list[Array]
    loss: float
    given: dict[str, Array] = field(default_factory=dict)
    gave: dict[str, Array] = field(default_factory=dict)
    gradients: dict[str, dict[str, Array | None]] = field(default_factory=dict)


@final
@dataclass(frozen=True, slots=True)
class ModelSide:
    """One of the two models, as its process told of it."""

    facts: Facts
    passes: ModelPasses
    weights: Weights


class Probe(ABC):
    """A model with a batch of inputs.

    as_is: inputs and outputs have the layout of the batch's file;
    description: known once the model has been called. channels_first: as the framework has maps."""

    channels_first: ClassVar[bool]
    as_is: bool
    description: Description

    @abstractmethod
    def facts(self) -> Facts: ...

    def keep_order(self, names: Set[str]) -> None:
        """Describe these layers anew: each counts a flattened map in the order that it is given.

        Only for layers whose `flattened` is not empty."""
        raise NotImplementedError

    @abstractmethod
    def read(self) -> dict[str, Array]:
        """Return all parameters and buffers, by name, in the framework's layout."""

    @abstractmethod
    def write(self, arrays: Mapping[str, Array]) -> None:
        """Set those named: the inverse of `read`."""

    @abstractmethod
    def passes(self, loss: Loss) -> ModelPasses:
        """Run the model on the batch, forward and backward."""

    def _given_to_model(self, array: Array, layers: Sequence[Layer]) -> Array:
        """Turn an input to the model's layout. layers: as far as they are known before a call."""
        if self.as_is or not turns(array.ndim, layers, self.channels_first):
            return array
        return turned(array)

    def _given_by_model(self, output: Array) -> Array:
        """Turn an output to the batch's layout."""
        return turned_back(output) if self._turns(output.ndim) else output

    def _slope(self, slope: Array) -> Array:
        """Turn a gradient by an output, in the batch's layout, to the model's."""
        return turned(slope) if self._turns(slope.ndim) else slope

    def _turns(self, rank: int) -> bool:
        layers = self.description.layers[::-1]
        return not self.as_is and turns(rank, layers, self.channels_first)

    def _gradients_by_role(self, arrays: Mapping[str, Array]) -> dict[str, dict[str, Array | None]]:
        """Sort gradients by layer and role; None where one is trained and has none."""
        return {layer.name: _by_role(layer, arrays) for layer in self.description.layers}


def called_with(inputs: Mapping[str, Any]) -> tuple[list[Any], dict[str, Any]]:
    """Return what a model is called with: by position, or by the model's own names."""
    if inputs.keys() == {"x"} or all(n[0] == "x" and n[1:].isdigit() for n in inputs):
        return [inputs[name] for name in sorted(inputs, key=lambda name: int(name[1:] or 0))], {}
    return [], dict(inputs)


def _by_role(layer: Layer, arrays: Mapping[str, Array]) -> dict[str, Array | None]:
    wanted = {part.role for p in layer.parameters if p.trainable for part in p.parts}
    found = to_canonical(layer, arrays, OPS, "gradient")
    return {role: found.get(role) for role in sorted(wanted)}
