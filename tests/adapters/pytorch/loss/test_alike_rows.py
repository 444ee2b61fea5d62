"""Rows that every rank has alike, in loops that share their batches: noise of a size that the
script has written down, or points that it computed before the loop. A sum over them, a batch norm
and a dropout are of these rows, once."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from typing import Any, cast

import numpy as np
import pytest
import torch
from beside_plain import hold, of_replicas
from torch import nn
from torch.nn.functional import binary_cross_entropy_with_logits as bce
from torch.utils.data import DataLoader, TensorDataset

import dream

pytestmark = pytest.mark.slow
BATCH = 8
CORNERS = torch.eye(8)[:4]
Step = Callable[[Any, Any, torch.Tensor], torch.Tensor]


def summed(_: Any, critic: Any, x: torch.Tensor) -> torch.Tensor:
    return critic(x).sum() + 0.1 * critic(torch.randn(13, 8)).sum()


def moved(_: Any, critic: Any, x: torch.Tensor) -> torch.Tensor:
    """A chain, which its first draw and the gradients by it are of."""
    z = (torch.rand(16, 8) * 2 - 1).requires_grad_()
    for _ in range(2):
        critic(z).sum().backward()
        assert z.grad is not None
        z = (z - 0.1 * z.grad).detach().requires_grad_()
    critic.zero_grad()
    return critic(x).mean() - critic(z.detach()).mean()


def buffered(net: Any, critic: Any, x: torch.Tensor) -> torch.Tensor:
    """The same of a buffer's rows, that numbers choose."""
    chosen = torch.randint(0, 30, (16,))
    z = net.chains[chosen].clone().requires_grad_()
    critic(z).sum().backward()
    assert z.grad is not None
    net.chains[chosen] = (z - 0.1 * z.grad).detach()
    critic.zero_grad()
    return critic(x).mean() - critic(net.chains[chosen]).mean()


def fixed(net: Any, critic: Any, x: torch.Tensor) -> torch.Tensor:
    """Points that were drawn before the loop, which shows NumPy what they are."""
    net.points.numpy().mean()
    return critic(x).sum() + 0.1 * critic(net.points).sum()


def computed(net: Any, critic: Any, x: torch.Tensor) -> torch.Tensor:
    """Points that were computed before the loop, as many as a share has among them."""
    return critic(x).sum() + 0.1 * critic(net.grid).sum() + 0.1 * critic(CORNERS).sum()


def adversarial(net: Any, critic: Any, x: torch.Tensor) -> torch.Tensor:
    fake = net(torch.empty(16, 8).normal_())
    real = bce(critic(x), torch.ones(len(x), 1))
    return (
        real + bce(critic(fake.detach()), torch.zeros(16, 1)) + bce(critic(fake), torch.ones(16, 1))
    )


def quiet(net: Any, critic: Any, x: torch.Tensor) -> torch.Tensor:
    """No graph leads from the noise to what is made of it."""
    with torch.no_grad():
        fake = 0.5 * net(torch.randn(13, 8))
    return critic(x).mean() - critic(fake).mean()


def made(_: Any, critic: Any, x: torch.Tensor) -> torch.Tensor:
    """Points that are computed in the loop, of sizes alone; and as many as the batch has."""
    a, b = torch.meshgrid(torch.linspace(-1, 1, 3), torch.linspace(-1, 1, 4), indexing="ij")
    points = torch.stack([a.flatten(), b.flatten()], 1).repeat(1, 4)
    own = critic(torch.zeros(len(x), 8)).sum() + critic(torch.ones(1, 8).expand(len(x), -1)).sum()
    return critic(x).sum() + 0.1 * critic(points).sum() + 0.1 * own


def picked(net: Any, critic: Any, x: torch.Tensor) -> torch.Tensor:
    """Rows of what was there before."""
    return critic(x).sum() + 0.1 * critic(net.chains[torch.randperm(30)[:10]]).sum()


def late(net: Any, critic: Any, x: torch.Tensor) -> torch.Tensor:
    """Points that are computed between two passes, anew each time."""
    points = [] if net.late is None else [net.late, net(net.late)]
    return critic(x).sum() + 0.1 * sum(critic(each).sum() for each in points)


def numbered(net: Any, critic: Any, x: torch.Tensor) -> torch.Tensor:
    """Points that NumPy draws, and what a model makes of them; a batch that went through it."""
    drawn = torch.from_numpy(net.numbers.random((13, 8), dtype=np.float32))
    own = torch.from_numpy(x.numpy() / 2)
    listed = torch.tensor([[0.1 * row - 0.2 * each for each in range(8)] for row in range(8)])
    points = critic(drawn).sum() + critic(net(drawn)).sum() + critic(listed).sum()
    return critic(own).sum() + 0.1 * points


STEPS = {
    each.__name__: each
    for each in (
        numbered, summed, moved, buffered, fixed, computed, adversarial, quiet, made, picked, late
    )
}  # fmt: skip


def trained(word: str) -> dict[str, float]:
    with dream.strategy(word) if word else nullcontext():
        return {name: learned(STEPS[name], drops=name in DROPS) for name in STEPS}


DROPS = ("numbered", "summed", "quiet", "made")
"""Which have a dropout: one that rows of batches come by too draws for these."""


def learned(
    step: Step, *, drops: bool, samples: int = 22, kept: Any = (), epochs: int = 3
) -> float:
    torch.manual_seed(3)
    net = nn.Sequential(nn.Linear(8, 8), nn.BatchNorm1d(8), nn.Tanh(), nn.Linear(8, 8))
    net.numbers = np.random.default_rng(3)
    net.chains, net.points = torch.rand(30, 8), torch.randn(12, 8)
    net.grid = torch.from_numpy(np.linspace(-1, 1, 96, dtype=np.float32).reshape(12, 8))
    with torch.inference_mode():
        net.looked_up = torch.ones(4, 8)  # which counts no writes
    norm = nn.Dropout(0.3) if drops else nn.BatchNorm1d(8)
    critic = nn.Sequential(nn.Linear(8, 8), norm, nn.Tanh(), nn.Linear(8, 1))
    optimizer = torch.optim.SGD([*net.parameters(), *critic.parameters()], lr=0.02)
    net.late, net.kept = None, [*kept]
    for each in range(epochs):
        for (x,) in DataLoader(
            TensorDataset(torch.randn(samples, 8)), batch_size=BATCH, shuffle=True
        ):
            optimizer.zero_grad()
            step(net, critic, x / 2).backward()
            optimizer.step()
        with torch.no_grad():
            middle = torch.stack([net(net.points[i::5]).mean(0) for i in range(5)])
        net.late = torch.cat([middle, torch.linspace(-1, 1, 48 + 8 * each).view(-1, 8)])
    states = [*net.state_dict().values(), *critic.state_dict().values()]
    return float(sum(x.double().abs().sum() for x in states) + torch.rand(()))


@of_replicas
def test_rows_alike_count_once(word: str, ranks: int) -> None:
    hold(trained, word, ranks=ranks, within=5e-6)


def in_micro_batches() -> float:
    """Rows of the batch's own number are a share's, though they are drawn beside its model."""

    def of_the_batch(_: Any, critic: Any, x: torch.Tensor) -> torch.Tensor:
        fake = critic(torch.randn(len(x), 8)).mean()
        return critic(x).mean() - fake

    with dream.strategy("mirrored", accumulate=2):
        return learned(of_the_batch, drops=True)


def test_accumulated_batches_have_rows_of_their_own(capfd: pytest.CaptureFixture[str]) -> None:
    one, other = dream.launch(in_micro_batches, n=2, framework="torch", timeout=240)
    assert one == other
    assert "draws anew for each micro-batch of accumulate=" in capfd.readouterr().err


def several_for_each(samples: int) -> float:
    def two_rows(net: Any, critic: Any, x: torch.Tensor) -> torch.Tensor:
        return critic(x).mean() - critic(net(torch.randn(2 * len(x), 8))).mean()

    with dream.strategy("mirrored"):
        return learned(two_rows, drops=False, samples=samples)


def several_by_a_variable(samples: int) -> float:
    def two_rows(net: Any, critic: Any, x: torch.Tensor) -> torch.Tensor:
        many = 2 * len(x)
        return critic(x).mean() - critic(net(torch.randn(many, 8))).mean()

    with dream.strategy("mirrored"):
        return learned(two_rows, drops=False, samples=samples)


def as_many_each_time(samples: int) -> float:
    def noise(_: Any, critic: Any, x: torch.Tensor) -> torch.Tensor:
        return critic(x).mean() - critic(torch.randn(BATCH * 2, x.shape[1])).mean()

    with dream.strategy("mirrored"):
        return learned(noise, drops=False, samples=samples)


def too_few() -> float:
    def taken(net: Any, critic: Any, x: torch.Tensor) -> torch.Tensor:
        return critic(x).mean() - critic(net.chains[torch.randperm(30)[: len(x)]]).mean()

    with dream.strategy("mirrored"):
        return learned(taken, drops=False)


def test_as_many_as_a_share_of_what_is_alike_are_named(capfd: pytest.CaptureFixture[str]) -> None:
    dream.launch(too_few, n=2, framework="torch", timeout=240)
    assert capfd.readouterr().err.count("of 30 rows that every rank draws alike") == 1


@pytest.mark.parametrize(
    ("job", "samples", "named"),
    [
        (several_for_each, 22, 1),
        (several_for_each, 24, 1),
        pytest.param(several_by_a_variable, 24, 1, marks=pytest.mark.exhaustive),
        (as_many_each_time, 24, 0),
    ],
    ids=["by two sizes", "by the words of the script", "by a variable", "of a size of its own"],
)
def test_several_rows_for_each_of_the_batchs_are_named(
    capfd: pytest.CaptureFixture[str], job: Callable[[int], float], samples: int, named: int
) -> None:
    dream.launch(job, samples, n=2, framework="torch", timeout=240)
    assert capfd.readouterr().err.count("several rows for each of the batch's") == named


def points_of_the_share(written: bool) -> float:
    """A point for each of this rank's rows; written: as many, by a number of the script's."""

    def step(net: Any, critic: Any, x: torch.Tensor) -> torch.Tensor:
        n = BATCH // 2
        when = torch.linspace(0, 1, n) if written else torch.linspace(0, 1, len(x))
        when = when + (torch.arange(n) / n if written else torch.arange(len(x)) / len(x)).mean()
        return (critic(x) * when.sum() + net(x).mean()).mean()

    with dream.strategy("mirrored"):
        return learned(step, drops=False)


@pytest.mark.parametrize("written", [False, True])
def test_points_for_the_rows_of_a_share_are_named(
    capfd: pytest.CaptureFixture[str], written: bool
) -> None:
    """They were 2e-3 off, unsaid."""
    dream.launch(points_of_the_share, written, n=2, framework="torch", timeout=240)
    err = capfd.readouterr().err
    assert err.count("take this rank's by strategy.share") == 2 * (not written)


def numbers_that_begin_late() -> float:
    def step(net: Any, critic: Any, x: torch.Tensor) -> torch.Tensor:
        net.steps = getattr(net, "steps", 0) + 1
        loss: torch.Tensor = critic(x).sum()
        if net.steps > 12:
            loss = loss + critic(torch.tensor([[0.1 * each for each in range(8)]] * 13)).sum()
        return loss

    with dream.strategy("mirrored"):
        return learned(step, drops=True, samples=48)


@pytest.mark.exhaustive
def test_numbers_that_begin_late_are_named(capfd: pytest.CaptureFixture[str]) -> None:
    dream.launch(numbers_that_begin_late, n=2, framework="torch", timeout=240)
    assert capfd.readouterr().err.count("began after the loop's first steps") == 1


def rows_of_before(whole: bool, first: int = 0) -> float:
    """As many rows of a NumPy buffer as the batch has: drawn, or the batch before, whole. first:
    the step from which on."""
    epochs = 12 if first else 3

    def step(net: Any, critic: Any, x: torch.Tensor) -> torch.Tensor:
        net.kept.append((2 * x).numpy())
        if len(net.kept) < first:
            return cast("torch.Tensor", critic(x).mean())
        rows = np.concatenate(net.kept[:-1] or net.kept)
        again = rows[-len(x) :] if whole else net.numbers.permutation(rows)[: len(x)]
        loss: torch.Tensor = critic(x).mean() + critic(torch.from_numpy(again)).mean()
        return loss

    with dream.strategy("mirrored"):
        # of the last batch, one rank has no row; the batch before has as many as this one
        return learned(step, drops=True, samples=48 if whole or first else 49, epochs=epochs)


@pytest.mark.parametrize(("whole", "first"), [(False, 0), (True, 0), (False, 40), (True, 40)])
def test_rows_that_a_rank_has_kept_are_named(
    capfd: pytest.CaptureFixture[str], whole: bool, first: int
) -> None:
    """A rank draws from its own rows: 4.5 of 144 in one script, unsaid. A batch before this one is
    each rank's share of one device's."""
    dream.launch(rows_of_before, whole, first, n=2, framework="torch", timeout=240)
    assert capfd.readouterr().err.count("rows of earlier batches that NumPy") == (not whole)


def written_by_numpy(how: str) -> float:
    """Rows that were there before the loop, or that have the batch's beside what is large."""

    def step(net: Any, critic: Any, x: torch.Tensor) -> torch.Tensor:
        rows = np.full((13, 8), 1e6, np.float32) if how == "beside" else net.kept[0]
        rows[0] = x.numpy()[0]
        given = torch.from_numpy(rows) if how == "beside" else net.kept[1]
        loss: torch.Tensor = critic(x).mean() + 1e-6 * critic(given).square().mean()
        return loss

    kept = torch.zeros(13, 8)
    own = np.zeros((13, 8), np.float32)
    pairs = {"tensor": (kept.numpy(), kept), "array": (own, torch.from_numpy(own)), "beside": ()}
    with dream.strategy("mirrored"):
        return learned(step, drops=True, kept=pairs[how])


@pytest.mark.parametrize("how", ["tensor", "array", "beside"])
def test_rows_that_numpy_writes_are_named(capfd: pytest.CaptureFixture[str], how: str) -> None:
    """They counted as alike on every rank, unsaid, as did rows that differ by little."""
    dream.launch(written_by_numpy, how, n=2, framework="torch", timeout=240)
    assert capfd.readouterr().err.count("as those that each rank has kept") == 1


HOW: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "as they are": lambda x: x,
    "changed": lambda x: x * 2,
    "with noise": lambda x: (x.double() - 0.1) / 3 + torch.randn(len(x), 8),
    "by NumPy": lambda x: torch.from_numpy(x.numpy() * 2),
}


def batches_of_a_list(word: str, how: str, late: bool) -> float:
    """Each trained on as it is, or made another: as it is kept, or late, where it is trained on."""
    torch.manual_seed(3)
    model, make = nn.Linear(8, 1).double(), HOW[how]
    optimizer = torch.optim.SGD(model.parameters(), lr=0.02)
    with dream.strategy(word) if word else nullcontext():
        loader = DataLoader(TensorDataset(torch.randn(27, 8)), batch_size=BATCH, shuffle=True)
        for x in [x if late else make(x) for (x,) in loader]:
            optimizer.zero_grad()
            model((make(x) if late else x).double()).square().mean().backward()
            optimizer.step()
    return model.weight.sum().item()


@pytest.mark.parametrize("ranks", [2, pytest.param(3, marks=pytest.mark.exhaustive)])
@pytest.mark.parametrize(("how", "late"), [(how, True) for how in HOW] + [("changed", False)])
def test_what_is_made_of_a_kept_batch_is_of_that_batch(
    capfd: pytest.CaptureFixture[str], how: str, late: bool, ranks: int
) -> None:
    apart = batches_of_a_list("", how, late)
    given = batches_of_a_list, "mirrored", how, late
    found = dream.launch(*given, n=ranks, framework="torch", timeout=240)
    err = capfd.readouterr().err
    assert "while batches that one did are kept" not in err
    assert "which is exact" not in err
    assert all(abs(each - apart) < 1e-6 for each in found)


def batches_changed_after(passes: int, word: str = "") -> float:
    """Kept batches that are trained on as they are, so that nobody looks any more; then changed."""
    torch.manual_seed(3)
    model = nn.Linear(8, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.02)
    with dream.strategy(word) if word else nullcontext():
        loader = DataLoader(TensorDataset(torch.randn(27, 8)), batch_size=BATCH, shuffle=True)
        kept = [*loader]
        for each in range(passes + 2):
            for (x,) in kept:
                optimizer.zero_grad()
                model(x if each < passes else x * 3).square().mean().backward()
                optimizer.step()
    return model.weight.sum().item()


def test_kept_batches_that_are_changed_late_have_their_own_shares() -> None:
    plain = batches_changed_after(9)
    for found in dream.launch(
        batches_changed_after, 9, "mirrored", n=3, framework="torch", timeout=240
    ):
        assert abs(found - plain) < 1e-6
