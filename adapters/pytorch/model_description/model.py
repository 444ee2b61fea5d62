"""A torch model's layers in the words of every framework, and their layouts on torch's tensors."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, final

import torch
from torch import nn
from torch.nn.parameter import is_lazy
from torch.nn.utils import parametrize

from dream._errors import ConfigurationError, Unsupported
from dream.adapters.pytorch.model_description import layers as kinds
from dream.adapters.pytorch.model_description.layers import LayerMatch
from dream.model_description.layers import OTHER, Description, Layer, Parameter, Part


@final
class TorchOps:
    """The steps on tensors; gradients flow through them."""

    def permute(self, x: torch.Tensor, axes: Sequence[int]) -> torch.Tensor:
        return x.permute(*axes)

    def reshape(self, x: torch.Tensor, shape: Sequence[int]) -> torch.Tensor:
        return x.reshape(tuple(shape))

    def reorder(self, x: torch.Tensor, dim: int, order: Sequence[int]) -> torch.Tensor:
        return x.index_select(dim, torch.tensor(order, device=x.device))

    def split(self, x: torch.Tensor, count: int) -> Sequence[torch.Tensor]:
        return x.chunk(count)

    def join(self, parts: Sequence[torch.Tensor]) -> torch.Tensor:
        return torch.cat(tuple(parts))

    def zeros(self, like: torch.Tensor) -> torch.Tensor:
        return torch.zeros_like(like)


OPS = TorchOps()


def describe(model: nn.Module, modules: Sequence[nn.Module] | None = None) -> Description:
    """The layers with parameters, in the order of their definition.

    modules: those that a batch went through, in the order of their calls; what was not called
        comes last.
    Raises Unsupported for a layer whose parameters another framework cannot have.
    """
    places = {id(module): place for place, module in enumerate(modules or ())}
    found = list(_walk(model, ""))
    found.sort(key=lambda item: places.get(id(item[1]), len(places)))  # stable
    seen: dict[int, str] = {}
    layers = tuple(
        _layer(name, module, layer, seen) for name, module, each in found for layer in each
    )
    return Description("torch", layers)


def layer_modules(model: nn.Module) -> dict[str, nn.Module]:
    """Name of a layer -> the module that it is."""
    return {
        _name(name, module, layer): module
        for name, module, each in _walk(model, "")
        for layer in each
    }


def tensors(model: nn.Module) -> dict[str, torch.Tensor]:
    """Name of a parameter or buffer, as `describe` gives it -> itself."""
    return dict(model.named_parameters(remove_duplicate=False)) | dict(
        model.named_buffers(remove_duplicate=False)
    )


def _walk(module: nn.Module, name: str) -> Iterator[tuple[str, nn.Module, list[LayerMatch]]]:
    """(name, module, its layers), depth first. The insides of a known kind belong to it."""
    _check(name, module)
    known = kinds.describe(module)
    if known is not None:
        if any(layer.parts for layer in known):
            yield name, module, known
        return
    own = list(kinds.own_parameters(module))
    if own:
        yield name, module, [_other(module, own)]
    for child_name, child in module.named_children():
        yield from _walk(child, f"{name}.{child_name}" if name else child_name)


def _check(name: str, module: nn.Module) -> None:
    if parametrize.is_parametrized(module):
        raise Unsupported(
            "A parametrized module's weights are computed, so none can be copied or compared. "
            f"Received: {name!r}, a {type(module).__name__}. Remove the parametrization first."
        )
    if any(is_lazy(value) for value in module.parameters(recurse=False)):
        raise ConfigurationError(
            f"A lazy module has no shape yet. Received: {name!r}, a {type(module).__name__}. "
            "Call the model on a batch first."
        )


def _other(module: nn.Module, names: Sequence[str]) -> LayerMatch:
    values = [(name, getattr(module, name)) for name in names]
    parts = {
        name: (Part(str(place), tuple(value.shape)),) for place, (name, value) in enumerate(values)
    }
    records = not list(module.children())
    return LayerMatch(OTHER, parts, {"class": type(module).__name__}, records=records)


def _layer(name: str, module: nn.Module, found: LayerMatch, seen: dict[int, str]) -> Layer:
    return Layer(
        name=_name(name, module, found),
        kind=found.kind,
        parameters=tuple(
            _parameter(f"{name}.{own}" if name else own, _inner(module, own), parts, seen)
            for own, parts in found.parts.items()
        ),
        settings={**found.settings, "dtype": _dtype(_inner(module, next(iter(found.parts))))},
        channels_first=found.channels_first,
        time_first=found.time_first,
        records=found.records,
    )


def _name(name: str, module: nn.Module, found: LayerMatch) -> str:
    return f"{name or type(module).__name__}{found.suffix}"


def _dtype(value: torch.Tensor) -> str:
    return str(value.dtype).removeprefix("torch.")


def _inner(module: Any, name: str) -> torch.Tensor:
    for part in name.split("."):
        module = getattr(module, part)
    return module  # type: ignore[no-any-return]


def _parameter(
    name: str, value: torch.Tensor, parts: tuple[Part, ...], seen: dict[int, str]
) -> Parameter:
    first = seen.setdefault(id(value), name)
    return Parameter(
        name=name,
        shape=tuple(value.shape),
        dtype=_dtype(value),
        trainable=value.requires_grad,
        parts=parts,
        same_as="" if first == name else first,
    )
