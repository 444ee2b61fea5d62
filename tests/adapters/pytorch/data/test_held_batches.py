"""Batches that a loop keeps in a list: which of them it holds is told by the script's names."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from beside_plain import hold
from torch import nn
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode, _get_current_function_mode_stack
from torch.utils.data import DataLoader, TensorDataset

import dream
from dream.adapters.pytorch.data.held_batch import Marks
from dream.data.partition import Share

pytestmark = pytest.mark.slow
Models = list[nn.Module]


def net(width: int = 6, out: int = 3) -> nn.Module:
    return nn.Sequential(nn.Linear(width, 8), nn.Tanh(), nn.Linear(8, out))


def batches(samples: int = 50) -> list[Any]:
    """16 to a batch, and two in the last one, of which one rank of three has none."""
    data = TensorDataset(torch.randn(samples, 6), torch.randint(3, (samples,)))
    return list(DataLoader(data, batch_size=16))


class Descent:
    def __init__(self, *models: nn.Module) -> None:
        self.steps = torch.optim.SGD([p for m in models for p in m.parameters()], lr=0.05)

    def __call__(self, loss: torch.Tensor) -> None:
        self.steps.zero_grad()
        loss.backward()
        self.steps.step()


def critic(noise: Callable[[torch.Tensor], torch.Tensor]) -> Models:
    maker, judge = nn.Linear(4, 6), net(6, 1)
    make, judged = Descent(maker), Descent(judge)
    kept = batches()
    for _ in range(4):
        for x, _ in kept:
            z = noise(x)
            judged(judge(maker(z).detach()).mean() - judge(x).mean())
            make(-judge(maker(z)).mean())
    return [maker, judge]


def critic_of_as_many() -> Models:
    return critic(lambda x: torch.randn(len(x), 4))


def critic_of_a_half() -> Models:
    """A number that no batch changes, and that is a rank's share of two."""
    return critic(lambda _: torch.randn(8, 4))


def critic_of_a_third() -> Models:
    rows = 5
    return critic(lambda _: torch.randn(rows, 4))


def two_by_numpy() -> Models:
    model, kept = net(), batches(23)
    descend = Descent(model)
    for _ in range(6):
        for x, y in kept:
            x = torch.from_numpy(x.numpy() * 2)
            descend(F.cross_entropy(model(x), y))
    return [model]


def noise_by_number() -> Models:
    """No variable names a batch."""
    model = net(6, 6)
    descend, kept = Descent(model), [x for x, _ in batches()]
    for _ in range(4):
        for i in torch.randperm(len(kept)).tolist():
            n = kept[i].shape[0]
            noise, much = torch.randn_like(kept[i]), torch.randint(1, 5, (n,))[:, None]
            descend(F.mse_loss(model(kept[i] + noise / much), noise))
    return [model]


def pairs() -> Models:
    model = net()
    descend, kept = Descent(model), [x for x, _ in batches()]
    for _ in range(4):
        for i in range(len(kept)):
            a, b = kept[i], kept[i - 1]
            b = b + 0.1 * torch.randn(len(b), 6)
            one, other = model(a * 1.0), model(b)
            descend(one.square().sum(1).mean() + 0.5 * (other - 1).square().sum(1).mean())
    return [model]


def hard_ones_again() -> Models:
    model, hard = net(), []
    descend = Descent(model)
    data = TensorDataset(torch.randn(50, 6), torch.randint(3, (50,)))
    for _ in range(3):
        for i, (x, y) in enumerate(DataLoader(data, batch_size=16)):
            descend(F.cross_entropy(model(x), y))
            if i % 2:
                hard.append((x, y))
        for each in (-1, 0, -1):
            hx, hy = hard[each]
            hx = hx + 0.05 * torch.randn_like(hx)
            descend(F.cross_entropy(model(hx), hy))
    return [model]


def drawn_between_passes() -> Models:
    """As many rows as some rank has of the last batch, which no loop holds any more."""
    model, kept = net(), batches()
    descend, draw = Descent(model), random.Random(0)
    with torch.no_grad():
        weight = next(model.parameters())
    for _ in range(4):
        for x, y in draw.sample(kept, len(kept)):
            x = x * 2
            descend(F.cross_entropy(model(x), y))
        for size in (1, 2, 5, 6, 8):
            z = torch.randn(size, 6)[torch.randperm(size)]
            with torch.no_grad():
                weight += 0.01 * z[0]
    return [model]


@dataclass(slots=True, frozen=True)
class Samples:
    x: torch.Tensor
    y: torch.Tensor
    names: list[str]

    @classmethod
    def of(cls, samples: list[Any]) -> Samples:
        x, y = zip(*samples, strict=True)
        return cls(torch.stack(x), torch.stack(y), ["a"] * len(x))


def objects_with_noise_late() -> Models:
    """Of the last batch, too, of which a rank has no row; and when dream no longer looks."""
    model, data = net(), TensorDataset(torch.randn(50, 6), torch.randint(3, (50,)))
    descend = Descent(model)
    kept = list(DataLoader(data, batch_size=16, collate_fn=Samples.of))
    for epoch in range(6):
        for batch in kept:
            noise = torch.randn(len(batch.names), 1) if epoch > 2 else 0.0
            descend(F.cross_entropy(model(batch.x + noise), batch.y))
    return [model]


def by_a_module() -> Models:
    """Its variables are named by what runs it, and last when its loop is over."""
    own = {"model": net(), "Descent": Descent, "kept": batches(), "F": F, "torch": torch}
    for _ in range(2):
        exec(_MODULE, own)
    return [own["model"]]


_MODULE = """
descend = Descent(model)
for x, y in kept:
    descend(F.cross_entropy(model(x), y))
for size in (1, 2, 5, 8):
    with torch.no_grad():
        model[0].weight += 0.01 * torch.randn(size, 6)[0]
"""


class Trainer:
    def __init__(self) -> None:
        self.model = net()
        self.descend = Descent(self.model)

    def noise(self, rows: int) -> torch.Tensor:
        return torch.randn(rows, 6)

    def step(self, batch: Any) -> None:
        x, y = batch
        x = x.double().float() + 0.1 * self.noise(x.size(0))
        self.descend(F.cross_entropy(self.model(x), y))


def by_a_trainer() -> Models:
    trainer = Trainer()
    for batch in batches() * 4:
        trainer.step(batch)
    return [trainer.model]


class Own(TorchFunctionMode):
    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return func(*args, **(kwargs or {}))


def modes_around_the_first_batch() -> Models:
    model = net()
    descend = Descent(model)
    for mode in (Own(), torch.device("cpu")):
        with mode:
            kept = batches()
        assert not any(isinstance(each, Own) for each in _get_current_function_mode_stack())
        for x, y in kept * 3:
            descend(F.cross_entropy(model(x), y))
        assert _get_current_function_mode_stack() == []
    return [model]


SCRIPTS: tuple[Callable[[], Models], ...] = (
    critic_of_as_many, critic_of_a_half, critic_of_a_third, two_by_numpy, noise_by_number, pairs,
    hard_ones_again, drawn_between_passes, by_a_trainer, modes_around_the_first_batch,
    objects_with_noise_late, by_a_module,
)  # fmt: skip


def trained(word: str) -> dict[str, list[float]]:
    found = {}
    for script in SCRIPTS:
        torch.manual_seed(3)
        with dream.strategy(word) if word else nullcontext():
            models = script()
            found[script.__name__] = [*_sums(models), float(torch.rand(()))]
        assert _get_current_function_mode_stack() == []
    return found


def _sums(models: Models) -> Iterator[float]:
    for model in models:
        yield float(sum(x.detach().double().sum() for x in model.parameters()))


@pytest.mark.parametrize("ranks", [2, pytest.param(3, marks=pytest.mark.exhaustive)])
def test_a_kept_batch_that_the_loop_holds_is_known(ranks: int) -> None:
    hold(trained, "mirrored", ranks=ranks, within=2e-6)


def evaluated(by_hand: bool) -> None:
    with dream.strategy("mirrored"):
        model = nn.Linear(6, 1)
        descend = Descent(model)
        loader = DataLoader(TensorDataset(torch.randn(50, 6)), batch_size=16)
        begun = iter(loader)
        for (x,) in [next(begun)] if by_hand else loader:
            model.train()
            descend(model(x).square().mean())
            model.eval()
        if by_hand:
            model(next(begun)[0])


@pytest.mark.parametrize("by_hand", [True, False])
def test_a_batch_of_training_that_is_evaluated_is_said(
    capfd: pytest.CaptureFixture[str], by_hand: bool
) -> None:
    dream.launch(evaluated, by_hand, n=2, framework="torch", timeout=240)
    assert capfd.readouterr().err.count("begun to train, and by now") == by_hand


class Graphs:
    """A batch of a script's own, of as many nodes as its graphs have; it knows all data."""

    everything = torch.zeros(9, 2)

    def __init__(self, nodes: int) -> None:
        self.held = {"x": torch.randn(nodes, 2), "of": [torch.zeros(nodes)]}
        self.data, self.source = Graphs.everything, torch.nn.Linear(2, 2)


def test_what_an_object_has_is_of_its_batch() -> None:
    """By sizes it was taken for rows of every rank's, on some ranks: and they parted."""
    marks = Marks()
    for at, nodes in ((1, 5), (2, 7), (3, 5)):
        graphs = Graphs(nodes)
        marks.put(graphs, Share(2, 4, 2), None, at)
        for x in (graphs.held["x"], graphs.held["of"][0]):
            mark = marks.of(x)
            assert mark is not None
            assert mark.at == at
        assert marks.of(graphs.source.weight) is None
    assert marks.of(Graphs.everything) is None  # no batch's


@pytest.mark.filterwarnings("error::pytest.PytestUnraisableExceptionWarning")
def test_a_tensor_that_is_handed_out_again_is_of_its_last_batch() -> None:
    """What stood for the first one took away the second, and then found nothing to take away."""
    marks, x = Marks(), torch.zeros(2, 3)
    marks.put(x, Share(2, 4, 2), None, 1)
    first = marks.itself(x)
    marks.put(x, Share(2, 4, 2), None, 2)
    second = marks.itself(x)
    assert second is not None
    assert second.at == 2
    del x
    assert not marks
    assert first is not None  # held until here, as by what the loop has used last
