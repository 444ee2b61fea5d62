"""A torch model as `dream port-check` looks at it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from typing import Any, final

import numpy as np
import torch
from torch import nn
from torch.nn.utils.rnn import PackedSequence
from torch.utils import _pytree as pytree

from dream.adapters.pytorch.model_description import model as canonical
from dream.adapters.pytorch.parallel.inner_calls import called, whole_attention
from dream.model_description.layers import Layer
from dream.tools.port_check import probe
from dream.tools.port_check.probe import Array, Facts, Inputs, Loss, ModelPasses, Probe, called_with


@final
class TorchProbe(Probe):
    channels_first = True

    def __init__(self, model: nn.Module, inputs: Inputs, *, as_is: bool) -> None:
        self._model = model.eval()
        self.as_is = as_is
        self._defined = canonical.describe(model).layers
        self._given = {name: self._tensor(array) for name, array in inputs.items()}
        with whole_attention(), torch.no_grad(), called() as modules:
            self._call()
        self.description = canonical.describe(model, modules)
        self._modules = canonical.layer_modules(model)
        self._order = modules

    def facts(self) -> Facts:
        return Facts(
            description=self.description,
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

    def passes(self, loss: Loss) -> ModelPasses:
        given: dict[str, Array] = {}
        gave: dict[str, Array] = {}
        with whole_attention(), ExitStack() as hooks:
            for layer in self.description.layers:
                if layer.records:
                    hook = _recorder(layer, given, gave)
                    handle = self._modules[layer.name].register_forward_hook(hook, with_kwargs=True)
                    hooks.callback(handle.remove)
            outputs = [x for x in pytree.tree_leaves(self._call()) if isinstance(x, torch.Tensor)]
        arrays = [self._given_by_model(_array(x)) for x in outputs]
        floats = [place for place, x in enumerate(outputs) if x.is_floating_point()]
        value, slopes = loss([arrays[place] for place in floats])
        gradients = self._gradients([outputs[place] for place in floats], slopes)
        return ModelPasses(arrays, value, given, gave, gradients)

    def _call(self) -> Any:
        inputs, named = called_with(self._given)
        return self._model(*inputs, **named)

    def _tensor(self, array: Array) -> torch.Tensor:
        tensor = torch.from_numpy(np.array(self._given_to_model(array, self._defined)))
        first = next((p for p in self._model.parameters() if p.is_floating_point()), None)
        if first is None:
            return tensor
        return tensor.to(first.device, first.dtype if tensor.is_floating_point() else None)

    def _gradients(
        self, outputs: Sequence[torch.Tensor], slopes: Sequence[Array]
    ) -> dict[str, dict[str, Array | None]]:
        held = {n: x for n, x in canonical.tensors(self._model).items() if x.requires_grad}
        turned = [
            torch.from_numpy(np.array(self._slope(slope))).to(x)
            for slope, x in zip(slopes, outputs, strict=True)
        ]
        flowing = [(x, s) for x, s in zip(outputs, turned, strict=True) if x.requires_grad]
        found: Sequence[torch.Tensor | None] = [None] * len(held)
        if held and flowing:
            xs, grads = zip(*flowing, strict=True)
            found = torch.autograd.grad(xs, list(held.values()), grads, allow_unused=True)
        arrays = {n: _array(g) for n, g in zip(held, found, strict=True) if g is not None}
        return self._gradients_by_role(arrays)

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


def _recorder(layer: Layer, given: dict[str, Array], gave: dict[str, Array]) -> Callable[..., None]:
    def record(_: nn.Module, args: Any, kwargs: Any, output: Any) -> None:
        before, after = _first((args, kwargs)), _first(output)
        packed = isinstance(next(iter(args), None), PackedSequence)  # steps of no set shape
        if not packed and layer.name not in gave and before is not None and after is not None:
            given[layer.name] = probe.given_to(layer, _array(before))
            gave[layer.name] = probe.given_by(layer, _array(after))

    return record


def _first(nest: Any) -> torch.Tensor | None:
    return next((x for x in pytree.tree_leaves(nest) if isinstance(x, torch.Tensor)), None)


def _array(x: torch.Tensor) -> Array:
    """Copy to NumPy; what it has no dtype for, in float32."""
    plain = x.detach().cpu()
    return np.array(plain.float() if plain.dtype == torch.bfloat16 else plain)
