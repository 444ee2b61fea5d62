"""What is in a tensor, as a number."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from dream.adapters.pytorch.data.digests import contents_of, is_lent
from dream.adapters.pytorch.data.replicated_rows import memory_of

LARGE = torch.full((3, 4), 1e7)


@pytest.mark.parametrize(
    "x",
    [
        LARGE,
        LARGE.T,
        LARGE.to(torch.bfloat16),
        LARGE.to(torch.complex64).conj(),
        torch.arange(12).view(3, 4),
        torch.zeros(1 << 21).view(-1, 4),
    ],
)
def test_a_number_for_what_is_in_a_tensor(x: torch.Tensor) -> None:
    other = x.clone()
    assert contents_of(x) == contents_of(other)
    other[0, 0] = 3
    assert contents_of(x) != contents_of(other)
    assert contents_of(x) != contents_of(x.reshape(-1))
    assert not is_lent(x)  # nor has NumPy been shown it by this


def test_of_nothing_and_of_a_number() -> None:
    assert contents_of(torch.zeros(0, 2)) != contents_of(torch.zeros(0, 3))
    assert contents_of(torch.tensor(1.0)) != contents_of(torch.tensor(2.0))


def test_memory_that_numpy_has_too() -> None:
    shown = torch.zeros(3)
    assert not is_lent(shown)
    shown.numpy()
    assert is_lent(shown[1:])
    assert is_lent(torch.from_numpy(np.zeros(3)))
    assert not is_lent(torch.tensor(np.zeros(3)))


def test_a_parameter_of_a_lazy_module_has_no_memory_yet() -> None:
    """It raised torch's error about dummy batches, where a loop had drawn before."""
    assert memory_of(torch.nn.LazyLinear(3).weight) == 0
