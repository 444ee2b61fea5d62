"""A torch model as `dream port-check` looks at it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from typing import Any, final

import numpy as np
import torch
from torch import nn
from torch.utils import _pytree as pytree

from dream.adapters.pytorch.model_description import model as canonical
from dream.adapters.pytorch.model_description.calls import called, whole_attention
from dream.tools.port_check import placing
from dream.tools.port_check.arrays import OPS
from dream.tools.port_check.convert import to_canonical
from dream.tools.port_check.description import Layer
from dream.tools.port_check.loss import Loss
from dream.tools.port_check.probe import Array, Facts, Inputs, Passes, Probe


@final
class TorchProbe(Probe):
    """as_is: inputs and outputs have the layout of the batch's file."""

    def __init__(self, model: nn.Module, inputs: Inputs, *, as_is: bool) -> None:
        self._model = model.eval()
        self._as_is = as_is
        self._defined = canonical.describe(model).layers
        self._given = {name: self._tensor(array) for name, array in inputs.items()}
        with whole_attention(), torch.no_grad(), called() as modules:
            self._call()
        self._description = canonical.describe(model, modules)
        self._modules = canonical.layer_modules(model)
        self._order = modules

    def facts(self) -> Facts:
        return Facts(
            description=self._description,
            between=self._between(),
            dropouts=[m.p for m in self._order if isinstance(m, nn.modules.dropout._DropoutNd)],
            given={name: tuple(x.shape) for name, x in self._given.items()},
            backend="torch",
        )

    def read(self) -> dict[str, Array]:
        return {name: _array(x) for name, x in canonical.tensors(self._model).items()}

    def write(self, arrays: Mapping[str, Array]) -> None:
        held = canonical.tensors(self._model)
        with torch.no_grad():
            for name, array in arrays.items():
                held[name].copy_(torch.from_numpy(np.array(array)))

    def passes(self, loss: Loss) -> Passes:
        given: dict[str, Array] = {}
        gave: dict[str, Array] = {}
        with whole_attention(), ExitStack() as hooks:
            for layer in self._description.layers:
                if layer.records:
                    hook = _recorder(layer, given, gave)
                    handle = self._modules[layer.name].register_forward_hook(hook, with_kwargs=True)
                    hooks.callback(handle.remove)
            outputs = [x for x in pytree.tree_leaves(self._call()) if isinstance(x, torch.Tensor)]
        arrays = [self._placed(_array(x)) for x in outputs]
        floats = [place for place, x in enumerate(outputs) if x.is_floating_point()]
        value, slopes = loss([arrays[place] for place in floats])
        gradients = self._gradients([outputs[place] for place in floats], slopes)
        return Passes(arrays, value, given, gave, gradients)

    def _call(self) -> Any:
        if self._given.keys() == {"x"}:
            return self._model(self._given["x"])
        if all(name[0] == "x" and name[1:].isdigit() for name in self._given):
            return self._model(*(self._given[name] for name in sorted(self._given)))
        return self._model(**self._given)

    def _tensor(self, array: Array) -> torch.Tensor:
        if not self._as_is and placing.turns(array.ndim, self._defined, channels_first=True):
            array = placing.turned(array)
        tensor = torch.from_numpy(np.array(array))
        first = next((p for p in self._model.parameters() if p.is_floating_point()), None)
        if first is None:
            return tensor
        return tensor.to(first.device, first.dtype if tensor.is_floating_point() else None)

    def _placed(self, output: Array) -> Array:
        """An output in the batch's layout."""
        return placing.turned_back(output) if self._turns(output.ndim) else output

    def _turns(self, rank: int) -> bool:
        layers = self._description.layers[::-1]
        return not self._as_is and placing.turns(rank, layers, channels_first=True)

    def _gradients(
        self, outputs: Sequence[torch.Tensor], slopes: Sequence[Array]
    ) -> dict[str, dict[str, Array | None]]:
        held = {n: x for n, x in canonical.tensors(self._model).items() if x.requires_grad}
        turned = [self._slope(slope, x) for slope, x in zip(slopes, outputs, strict=True)]
        flowing = [(x, s) for x, s in zip(outputs, turned, strict=True) if x.requires_grad]
        found: Sequence[torch.Tensor | None] = [None] * len(held)
        if held and flowing:
            xs, grads = zip(*flowing, strict=True)
            found = torch.autograd.grad(xs, list(held.values()), grads, allow_unused=True)
        arrays = {n: _array(g) for n, g in zip(held, found, strict=True) if g is not None}
        return {layer.name: _by_role(layer, arrays) for layer in self._description.layers}

    def _slope(self, slope: Array, output: torch.Tensor) -> torch.Tensor:
        placed = placing.turned(slope) if self._turns(slope.ndim) else slope
        return torch.from_numpy(np.array(placed)).to(output)

    def _between(self) -> dict[str, list[str]]:
        names = {id(module): name for name, module in reversed(list(self._modules.items()))}
        found: dict[str, list[str]] = {}
        since: list[str] = []
        for module in self._order:
            if id(module) in names:
                found.setdefault(names[id(module)], since)
                since = []
            elif not list(module.children()) and not list(module.parameters()):
                since.append(repr(module))
        found[""] = since
        return found


def _by_role(layer: Layer, arrays: Mapping[str, Array]) -> dict[str, Array | None]:
    """None for the roles that are trained and have no gradient."""
    wanted = {part.role for p in layer.parameters if p.trainable for part in p.parts}
    found = to_canonical(layer, arrays, OPS, "gradient")
    return {role: found.get(role) for role in sorted(wanted)}


def _recorder(layer: Layer, given: dict[str, Array], gave: dict[str, Array]) -> Callable[..., None]:
    def record(_: nn.Module, args: Any, kwargs: Any, output: Any) -> None:
        before, after = _first((args, kwargs)), _first(output)
        if layer.name not in gave and before is not None and after is not None:
            given[layer.name] = placing.given_to(layer, _array(before))
            gave[layer.name] = placing.given_by(layer, _array(after))

    return record


def _first(nest: Any) -> torch.Tensor | None:
    return next((x for x in pytree.tree_leaves(nest) if isinstance(x, torch.Tensor)), None)


def _array(x: torch.Tensor) -> Array:
    """A copy; what NumPy has no dtype for, in float32."""
    plain = x.detach().cpu()
    return np.array(plain.float() if plain.dtype == torch.bfloat16 else plain)
