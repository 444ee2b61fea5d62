"""What is refused of a model before it is distributed."""

from __future__ import annotations

import pytest
from torch import nn

from dream import Unsupported
from dream.adapters.pytorch.module import refuse_meta


def test_a_model_without_values_is_refused() -> None:
    refuse_meta(nn.Linear(2, 2))
    with pytest.raises(Unsupported, match="weight of Linear"):
        refuse_meta(nn.Linear(2, 2, device="meta"))
