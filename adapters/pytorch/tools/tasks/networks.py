"""The embedded tasks' networks as a PyTorch user writes them, and their weights by task's names."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn
from torch.nn import functional as F

from dream.tools.compare.tasks import Weights, text
from dream.tools.compare.tasks.task import Task


class MLP(nn.Module):
    """Digits, or a table, by one hidden layer."""

    def __init__(self, inputs: int, hidden: int, outputs: int) -> None:
        super().__init__()
        self.hidden = nn.Linear(inputs, hidden)
        self.output = nn.Linear(hidden, outputs)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = self.output(F.relu(self.hidden(x)))
        return result


class CNN(nn.Module):
    """Two convolutions; images come with their channels last."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv2d(1, 16, 3)
        self.second = nn.Conv2d(16, 32, 3)
        self.output = nn.Linear(512, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = F.relu(self.first(x.movedim(-1, 1)))
        x = F.relu(self.second(x)).movedim(1, -1)
        result: torch.Tensor = self.output(x.flatten(1))
        return result


class Transformer(nn.Module):
    """One block: every character sees those before it."""

    def __init__(self) -> None:
        super().__init__()
        width = text.WIDTH
        self.letters = nn.Embedding(len(text.LETTERS), width)
        self.places = nn.Embedding(text.LENGTH, width)
        self.query, self.key, self.value, self.mixed = (nn.Linear(width, width) for _ in range(4))
        self.inner, self.outer = nn.Linear(width, text.INNER), nn.Linear(text.INNER, width)
        self.before_attention, self.before_inner, self.before_output = (
            nn.LayerNorm(width) for _ in range(3)
        )
        self.output = nn.Linear(width, len(text.LETTERS))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.letters(x) + self.places(torch.arange(x.shape[1], device=x.device))
        x = x + self._attention(self.before_attention(x))
        x = x + self.outer(F.gelu(self.inner(self.before_inner(x))))
        result: torch.Tensor = self.output(self.before_output(x))
        return result

    def _attention(self, x: torch.Tensor) -> torch.Tensor:
        query, key, value = (
            layer(x).unflatten(-1, (text.HEADS, -1)).transpose(1, 2)
            for layer in (self.query, self.key, self.value)
        )
        seen = F.scaled_dot_product_attention(query, key, value, is_causal=True)
        result: torch.Tensor = self.mixed(seen.transpose(1, 2).flatten(2))
        return result


_NETWORKS: Mapping[str, Callable[[], nn.Module]] = {
    "digits-mlp": lambda: MLP(64, 32, 10),
    "digits-cnn": CNN,
    "transformer": Transformer,
    "regression": lambda: MLP(10, 32, 1),
}


def build(task: Task, weights: Weights) -> nn.Module:
    """The task's network with its first weights."""
    network = _NETWORKS[task.name]()
    network.load_state_dict(
        {
            _torch_name(name): torch.from_numpy(np.ascontiguousarray(_turned(value, name)))
            for name, value in weights.items()
        }
    )
    return network


def parameters(task: Task, state: Mapping[str, NDArray[Any]]) -> Weights:
    """Every parameter by the task's names, laid out as the task has them. state: as full_state
    gives it."""
    return {
        name: np.ascontiguousarray(_turned_back(state[_torch_name(name)], name))
        for name in task.shapes
    }


def _torch_name(name: str) -> str:
    layer, _, kind = name.rpartition(".")
    return f"{layer}.{'bias' if kind == 'bias' else 'weight'}"


def _turned(value: NDArray[Any], name: str) -> NDArray[Any]:
    """A kernel as torch has it: outputs first."""
    if not name.endswith("kernel"):
        return value
    return value.T if value.ndim == 2 else value.transpose(3, 2, 0, 1)


def _turned_back(value: NDArray[Any], name: str) -> NDArray[Any]:
    if not name.endswith("kernel"):
        return value
    return value.T if value.ndim == 2 else value.transpose(2, 3, 1, 0)
