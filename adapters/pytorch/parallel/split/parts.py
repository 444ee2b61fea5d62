"""What a stage's rank keeps of a model and of its optimizer."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, final
from weakref import WeakSet

import torch
from numpy.typing import NDArray
from torch import nn
from torch.optim import LBFGS, Optimizer

from dream._errors import ConfigurationError, Unsupported
from dream._layout import check_same
from dream.adapters.pytorch import tensors
from dream.adapters.pytorch.parallel.split.in_parts import StateOfStages, mark, mark_states
from dream.collectives import Communicator


def start_as_rank_0(model: nn.Module, communicator: Communicator) -> None:
    """Rank 0's parameters and buffers everywhere, after a look at whether all built the same."""
    named = [*model.named_parameters(), *model.named_buffers()]
    layout = [(n, tuple(t.shape), str(t.dtype).removeprefix("torch.")) for n, t in named]
    check_same(communicator.all_gather_object(layout))
    with torch.no_grad():
        for _, tensor in named:
            tensor.copy_(communicator.broadcast(tensor.detach()))


@final
class Parts:
    """Which rank of a pipeline holds which tensor of a model's state.

    owners: name -> rank along the model axis; what no stage reads is the first one's.
    """

    def __init__(self, model: nn.Module, owners: Mapping[str, int], mine: int) -> None:
        self._model, self._mine = model, mine
        self._owners = {name: owners.get(name, 0) for name in model.state_dict()}
        self._taken = {id(p) for p in model.parameters()}
        self._kept = {
            name for name, _ in model.named_parameters() if self._owners.get(name, 0) == mine
        }
        own = {id(parameter) for name, parameter in model.named_parameters() if name in self._kept}
        self._own = own
        self._filtered: WeakSet[Optimizer] = WeakSet()

    @property
    def parameters(self) -> list[nn.Parameter]:
        """Those this rank trains, in the model's order."""
        return [p for p in self._model.parameters() if id(p) in self._own]

    def drop_others(self) -> None:
        """Let go of the memory of what other ranks hold: their parameters and buffers remain by
        name and shape alone."""
        for module in self._model.modules():
            for name, parameter in module._parameters.items():
                if parameter is not None and id(parameter) not in self._own:
                    hollow = nn.Parameter(parameter.detach().to("meta"), parameter.requires_grad)
                    mark(hollow)
                    module._parameters[name] = hollow
        for path, buffer in [*self._model.named_buffers()]:
            if self._owners.get(path, self._mine) != self._mine:
                owner, _, name = path.rpartition(".")
                hollow_buffer = buffer.to("meta")
                mark(hollow_buffer)
                self._model.get_submodule(owner)._buffers[name] = hollow_buffer
        mark_states(self._model)

    def holds(self, parameters: set[int]) -> bool:
        """Whether parameters, by their ids, are the model's, as they were or as they are."""
        return parameters <= self._taken | {id(p) for p in self._model.parameters()}

    @staticmethod
    def foreign(optimizer: Optimizer) -> ConfigurationError:
        return ConfigurationError(
            "A split model's optimizer steps that model alone. Received: an "
            f"{type(optimizer).__name__} with parameters of something else. Prepare the model "
            "first, and give each model its own optimizer."
        )

    def filter(self, optimizer: Optimizer) -> None:
        """Have an optimizer step this rank's parameters only, its groups kept."""
        if isinstance(optimizer, LBFGS):
            raise Unsupported(
                "A stage cannot search along a line by itself. Received: LBFGS. Use another "
                "optimizer, or mirrored."
            )
        if not self.holds({id(p) for group in optimizer.param_groups for p in group["params"]}):
            raise self.foreign(optimizer)
        for group in optimizer.param_groups:
            group["params"] = [p for p in group["params"] if id(p) in self._own]
        for parameter in [p for p in optimizer.state if id(p) not in self._own]:
            del optimizer.state[parameter]
        if optimizer not in self._filtered:
            self._filtered.add(optimizer)
            optimizer.register_state_dict_post_hook(lambda _, state: StateOfStages(state))

    def whole(self, communicator: Communicator) -> dict[str, NDArray[Any]]:
        """Every tensor of the model's state, from the ranks that hold them."""
        gathered: dict[str, NDArray[Any]] = {}
        for name, value in self._model.state_dict().items():
            given = torch.zeros(value.shape, dtype=value.dtype) if value.is_meta else value
            told = communicator.broadcast(given.detach().contiguous(), root=self._owners[name])
            gathered[name] = tensors.array_of(told)
        return gathered
