"""What `dream verify` changes in a model to see what rounding alone does."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from dream.adapters.pytorch.tools.verify import nudge


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16], ids=str)
def test_parameters_begin_one_rounding_away(dtype: torch.dtype) -> None:
    model = nn.Linear(20, 30, dtype=dtype)
    before = model.weight.detach().clone()
    nudge(model)
    apart = (model.weight.double() / before.double() - 1).abs()
    assert apart.min() > 0
    assert apart.max() < 2 * torch.finfo(dtype).eps
