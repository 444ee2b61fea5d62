"""Models made under torch.device("meta"): they have shapes and no memory until they are split.

Layer by layer, each rank draws the layer's first values as one device would, keeps its part, and
lets the rest go. So no rank ever holds more than one whole layer, and the values are those that
the same seed gives where every layer is made at once.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from functools import partial
from typing import Any, final

import torch
from torch import nn
from torch.distributed.tensor import DTensor, distribute_tensor

from dream._errors import Unsupported
from dream.adapters.pytorch.private import attention_reset, own_buffers, without_children
from dream.collectives import Communicator


def is_meta(module: nn.Module) -> bool:
    return any(parameter.is_meta for parameter in module.parameters())


@final
class MetaInitializer:
    """What each layer of a model looks like before it is split, and has memory."""

    def __init__(self, module: nn.Module) -> None:
        self._layers = [
            (part, _alone(part))
            for part in _children_first(module)
            if any(tensor.is_meta for tensor in _own(part).values())
        ]
        for part, _ in self._layers:
            if _reset_of(part) is None:
                raise Unsupported(
                    "A layer made on the meta device does not say how its values begin. Received: "
                    f"{type(part).__name__} with {', '.join(_own(part))}, and no "
                    "reset_parameters(). Give it one, or make the model on its real device."
                )

    def fill(
        self,
        module: nn.Module,
        device: torch.device,
        world: Communicator,
        held: torch.device | None = None,
    ) -> None:
        """Give the split module memory, and its first values: those of rank 0's generator. held:
        where its parameters lie, if not where it computes."""
        module.to_empty(device=held or device)
        for part in module.modules() if held is not None else ():
            for name, buffer in own_buffers(part):
                setattr(part, name, buffer.to(device))
        torch.set_rng_state(world.broadcast(torch.get_rng_state()))
        for part, blueprint in self._layers:
            whole = blueprint.to_empty(device="cpu")
            reset = _reset_of(whole)
            assert reset is not None
            reset()
            with torch.no_grad():
                for name, place in _places(part, blueprint).items():
                    _copy(_places(whole, blueprint)[name], place)
            blueprint.to_empty(device="meta")


def _copy(whole: torch.Tensor, place: torch.Tensor) -> None:
    if isinstance(place, DTensor):
        mesh, placements = place.device_mesh, place.placements
        whole = whole.to(place.to_local().device)
        piece = distribute_tensor(whole, mesh, placements, src_data_rank=None).to_local()
        place.to_local().copy_(piece)
    else:
        place.copy_(whole)


def _children_first(module: nn.Module) -> list[nn.Module]:
    """Return as constructors draw: a layer's children are made before it is filled itself.
    Attention is one layer, since it fills its child again."""
    if isinstance(module, nn.MultiheadAttention):
        return [module]
    return [*(p for child in module.children() for p in _children_first(child)), module]


def _alone(part: nn.Module) -> nn.Module:
    """Copy a part, still without memory, with no other layer in it."""
    whole = isinstance(part, nn.MultiheadAttention)
    return copy.deepcopy(part) if whole else without_children(part)


def _own(part: nn.Module) -> dict[str, torch.Tensor]:
    within = isinstance(part, nn.MultiheadAttention)
    named = [*part.named_parameters(recurse=within), *part.named_buffers(recurse=within)]
    return dict(named)


def _places(part: nn.Module, like: nn.Module) -> dict[str, torch.Tensor]:
    held = _own(part)
    return {name: held[name] for name in _own(like)}


def _reset_of(part: nn.Module) -> Callable[[], Any] | None:
    if isinstance(part, nn.MultiheadAttention):
        return partial(attention_reset, part)
    return getattr(part, "reset_parameters", None)
