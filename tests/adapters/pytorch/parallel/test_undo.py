"""What a module's calls may change beside its tensors."""

from __future__ import annotations

import torch
from torch import nn

from dream.adapters.pytorch.parallel.snapshot import Reach

data = [[0.0] * 4 for _ in range(8)]
told: list[float] = []


class Names(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(2, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        note = lambda each: told.append(float(each))  # noqa: E731
        note(self.layer.weight.data.sum())
        made: torch.Tensor = self.layer(x)
        return made


def test_a_variable_is_looked_at_where_code_names_it_not_an_attribute() -> None:
    """A data set called as an attribute is was copied at each step (60 ms for 4000 rows), and what
    a function in `forward` writes to was not seen."""
    reach = Reach(Names())
    assert {name for _, name in reach.named} & {"data", "told"} == {"told"}
    before = reach.before()
    Names()(torch.ones(1, 2))
    assert before.changed() == "writes to told in its forward pass"
    before.take_back()
    assert told == []
