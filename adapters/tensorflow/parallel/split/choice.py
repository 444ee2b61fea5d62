"""Where the layers of a model go: what one way to split by layers says to what runs the parts."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

from dream._mesh import Mesh
from dream.adapters.tensorflow.parallel.split.cutting import Cut
from dream.adapters.tensorflow.parallel.split.schedule import Kind
from dream.collectives import Communicator


class Choice(ABC):
    """Made of a strategy's options and a mesh."""

    @abstractmethod
    def cut(self, model: Any, communicator: Communicator) -> Cut:
        """The model in parts; which device of a row each is on. The same on every rank."""

    @property
    @abstractmethod
    def kind(self) -> Kind: ...

    @property
    @abstractmethod
    def microbatches(self) -> int:
        """How many there are at most, for each row."""


def fit(options: Any, name: str, replicas: int) -> Mesh:
    """The mesh that a strategy's options ask for."""
    data, model = options["data"], options["model"]
    if name == "model_parallel" and data is None and model is None:
        data = 1
    return Mesh.fit(replicas, data=data, model=model, spare="model")
