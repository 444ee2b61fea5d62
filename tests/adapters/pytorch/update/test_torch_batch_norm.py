"""BatchNorm over all ranks beside torch's own, in a world of one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

import dream
from dream import ConfigurationError
from dream.adapters.pytorch.tools.planning.ledger import Ledger, most_since
from dream.adapters.pytorch.update.batch_norm import Synchronised

CHANNELS = 8
SHAPES = {
    "rows": (4096, CHANNELS),
    "images": (64, CHANNELS, 16, 16),
    "channels last": (64, CHANNELS, 16, 16),
}


def over_all(norm: nn.modules.batchnorm._BatchNorm) -> Callable[..., Any]:
    ranks = dream.communicator(framework="torch")
    return Synchronised(norm, norm.forward, ranks, lambda: True, lambda: 1, lambda: 1.0)


def batch(layout: str) -> torch.Tensor:
    x = torch.randn(SHAPES[layout], generator=torch.Generator().manual_seed(1)) + 3
    return x.to(memory_format=torch.channels_last) if layout == "channels last" else x


def norm_of(x: torch.Tensor, dtype: torch.dtype = torch.float32) -> Any:
    kind = nn.BatchNorm1d if x.dim() == 2 else nn.BatchNorm2d
    norm = kind(CHANNELS, dtype=dtype)
    with torch.no_grad():
        norm.weight.copy_(torch.linspace(0.5, 2, CHANNELS))
    return norm


@pytest.mark.parametrize("layout", SHAPES)
def test_sums_of_many_values_keep_their_digits(layout: str) -> None:
    x = batch(layout)
    gradient = torch.rand(x.shape, generator=torch.Generator().manual_seed(2))
    found, right = [], []
    for into, dtype in ((found, torch.float32), (right, torch.float64)):
        norm, given = norm_of(x, dtype), x.detach().to(dtype).requires_grad_()
        call = over_all(norm) if dtype == torch.float32 else norm
        output = call(given)
        output.backward(gradient.to(dtype))
        if isinstance(call, Synchronised):
            call.settle()
        into += [output, given.grad, norm.bias.grad]
        into += [norm.running_mean, norm.running_var]
    for one, exact in zip(found, right, strict=True):
        assert (one - exact).abs().max() <= 1e-6 * exact.abs().max()


@pytest.mark.parametrize("layout", SHAPES)
def test_it_needs_hardly_more_than_torchs_own(layout: str) -> None:
    x = batch(layout)

    def most(call: Callable[..., Any]) -> int:
        with Ledger() as ledger:
            given = (x * 2).requires_grad_()
            call(given).relu().sum().backward()
        return most_since(ledger, 0)[0]

    norm = norm_of(x)
    assert most(over_all(norm)) < 1.02 * most(norm)


class _Moody(nn.Module):
    """Normalises the parts of a batch whose first sample is not negative; raises on nan."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(CHANNELS)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if x[0, 0].isnan():
            raise KeyError("the user's own")
        return self.norm(x) if x[0, 0] >= 0 else x


@pytest.mark.parametrize(
    ("first", "part", "error", "words"),
    [(float("nan"), 0, KeyError, "the user's own"), (-1.0, 1, ConfigurationError, "some parts")],
)
def test_no_replica_waits_in_vain(
    first: float, part: int, error: type[Exception], words: str
) -> None:
    model, x = _moody(first, part)
    with pytest.raises(error, match=words):
        model(x)
    assert model(torch.rand(8, CHANNELS)).shape == (8, CHANNELS), "it goes on afterwards"


@pytest.mark.parametrize(("first", "part"), [(float("nan"), 1), (-1.0, 0)])
def test_what_parts_alone_would_fail_on_is_one_devices(first: float, part: int) -> None:
    model, x = _moody(first, part)
    assert torch.allclose(model(x), _Moody()(x), equal_nan=True)
    assert model(torch.rand(8, CHANNELS)).shape == (8, CHANNELS), "it goes on afterwards"


def _moody(first: float, part: int) -> tuple[nn.Module, torch.Tensor]:
    with dream.strategy("data_parallel", devices=2):
        model = _Moody()
    x = torch.ones(8, CHANNELS)
    x[4 * part, 0] = first
    return model, x
