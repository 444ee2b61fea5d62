"""The mesh that replicas and parts of a model form: data axis x model axis, index arithmetic only.

Ranks (or the devices of one process) are laid out row by row, the model axis innermost: the parts
of one copy of the model are neighbours, and mostly share a host.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

from dream._errors import ConfigurationError


@dataclass(frozen=True, slots=True)
class Mesh:
    """data copies of the model, each in `model` parts."""

    data: int
    model: int

    @property
    def size(self) -> int:
        return self.data * self.model

    def data_index(self, rank: int) -> int:
        """Which copy of the model the rank is a part of: whose share of a batch it works on."""
        return rank // self.model

    def model_index(self, rank: int) -> int:
        """Which part of its copy the rank holds."""
        return rank % self.model

    def copy_of(self, rank: int) -> tuple[int, ...]:
        """The ranks that hold the parts of the rank's copy: its neighbours on the model axis."""
        first = self.data_index(rank) * self.model
        return tuple(range(first, first + self.model))

    def twins_of(self, rank: int) -> tuple[int, ...]:
        """The ranks that hold the same part in every copy: its neighbours on the data axis."""
        return tuple(range(self.model_index(rank), self.size, self.model))

    @classmethod
    def fit(cls, replicas: int, *, data: int | None, model: int | None, spare: str) -> Self:
        """The mesh of `replicas` ranks or devices. An axis that is not given takes what the other
        leaves; where neither is, `spare` ("data" or "model") takes all."""
        if data is None and model is None:
            data, model = (replicas, 1) if spare == "data" else (1, replicas)
        elif data is None:
            assert model is not None
            data = max(1, replicas // model)
        elif model is None:
            model = max(1, replicas // data)
        if data * model != replicas:
            raise ConfigurationError(
                "The mesh must multiply out to the replicas. Received: "
                f"data {data} x model {model} = {data * model}, replicas {replicas}. Start "
                f"{data * model} ranks (dream run -n {data * model}), or choose axes whose product "
                f"is {replicas}."
            )
        return cls(data, model)
