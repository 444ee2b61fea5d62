"""Data of every kind that torch has, read in part, left, and read on by other ranks."""

from __future__ import annotations

import random
import traceback
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import (
    DataLoader,
    Dataset,
    IterableDataset,
    RandomSampler,
    TensorDataset,
    get_worker_info,
)

import dream

SAMPLES, FEATURES, CLASSES, BATCH = 61, 6, 4, 16
Sample = tuple[int, torch.Tensor, torch.Tensor]


def sample(index: int) -> Sample:
    draw = np.random.default_rng(index)
    x = torch.from_numpy(draw.normal(size=FEATURES).astype(np.float32))
    return index, x, x[:CLASSES].abs().argmax()


class Mapped(Dataset[Sample]):
    def __len__(self) -> int:
        return SAMPLES

    def __getitem__(self, index: int) -> Sample:
        return sample(index)


class Stream(IterableDataset[Sample]):
    """Each worker takes its part, as torch's own documentation has it; and nobody thinks of
    ranks. shuffled: by the worker's generators, as they are seeded."""

    def __init__(self, samples: int = SAMPLES, *, shuffled: bool = False) -> None:
        self.samples = samples
        self.shuffled = shuffled

    def __iter__(self) -> Iterator[Sample]:
        info = get_worker_info()
        part = range(self.samples)[info.id :: info.num_workers] if info else range(self.samples)
        order = list(part)
        if self.shuffled:
            random.shuffle(order)
            order = [order[at] for at in torch.randperm(len(order)).tolist()]
        return (sample(index) for index in order)


class Batches(IterableDataset[Any]):
    """A stream that makes its own batches, of several sizes."""

    def __iter__(self) -> Iterator[Any]:
        for start, stop in ((0, 16), (16, 21), (21, 22), (22, 61)):
            rows = [sample(index) for index in range(start, stop)]
            yield {"index": np.arange(start, stop), "x": torch.stack([x for _, x, _ in rows]),
                   "y": torch.stack([y for *_, y in rows])}  # fmt: skip


def seeded_sampler() -> DataLoader[Any]:
    draws = torch.Generator().manual_seed(5)
    sampler = RandomSampler(Mapped(), generator=draws)
    return DataLoader(Mapped(), batch_size=BATCH, sampler=sampler)


LOADERS: dict[str, Callable[[], DataLoader[Any]]] = {
    "mapped": lambda: DataLoader(Mapped(), batch_size=BATCH, shuffle=True),
    "mapped_by_workers": lambda: DataLoader(Mapped(), BATCH, shuffle=True, num_workers=2),
    "by_a_sampler": seeded_sampler,
    "stream": lambda: DataLoader(Stream(), batch_size=BATCH),
    "stream_by_workers": lambda: DataLoader(Stream(), batch_size=BATCH, num_workers=2),
    "stream_shuffled_by_workers": lambda: DataLoader(
        Stream(shuffled=True), batch_size=BATCH, num_workers=2
    ),
    "stream_of_batches": lambda: DataLoader(Batches(), batch_size=None),
    "stream_without_the_last": lambda: DataLoader(Stream(), batch_size=BATCH, drop_last=True),
}
SHORT = ("by_a_sampler",)
"""Left in their first epoch: a generator that has drawn an epoch is the user's to restore."""


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(FEATURES, 8)
        self.last = nn.Linear(8, CLASSES)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.last(torch.tanh(self.first(x)))


class Run:
    """A training that can be left and gone on with. taken: this rank's indices by epoch and
    update."""

    def __init__(self, kind: str) -> None:
        self.model = Net()
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1, momentum=0.9)
        self.batches = LOADERS[kind]()
        self.taken: list[list[list[int]]] = []

    def epoch(self, stop: int = -1) -> None:
        self.taken.append([])
        for batch in self.batches:
            index, x, y = batch.values() if isinstance(batch, dict) else batch
            self.taken[-1].append(index.tolist())
            self.optimizer.zero_grad()
            F.cross_entropy(self.model(x), y).backward()
            self.optimizer.step()
            if len(self.taken[-1]) == stop:
                return

    def everywhere(self) -> list[list[int]]:
        """An evaluation loop's view: every sample."""
        with torch.no_grad():
            return [(b["index"] if isinstance(b, dict) else b[0]).tolist() for b in self.batches]

    def kept(self) -> dict[str, Any]:
        return {
            "model": self.model.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "data": self.batches.state_dict(),  # type: ignore[attr-defined]
        }

    def load(self, kept: dict[str, Any]) -> None:
        self.model.load_state_dict(kept["model"])
        self.optimizer.load_state_dict(kept["optimizer"])
        self.batches.load_state_dict(kept["data"])  # type: ignore[attr-defined]

    @property
    def weights(self) -> np.ndarray:
        return torch.cat([p.detach().reshape(-1) for p in self.model.parameters()]).numpy()


def _each(
    knobs: dict[str, Any], act: Callable[[str], dict[str, Any]], *, seed: int = 1
) -> dict[str, Any]:
    """Do it with every kind of loader, in a block, or without dream where it is plain."""
    torch.set_num_threads(1)
    found: dict[str, Any] = {}
    for kind in LOADERS:
        torch.manual_seed(seed)
        with nullcontext() if knobs.get("plain") else dream.strategy(**knobs):
            try:
                found[kind] = act(kind)
            except Exception:
                found[kind] = traceback.format_exc()
    return found


def begin(**knobs: Any) -> dict[str, Any]:
    """An epoch and half of one, and what is kept then."""

    def act(kind: str) -> dict[str, Any]:
        run = Run(kind)
        seen: list[list[int]] = []
        if kind not in SHORT:
            run.epoch()
            seen = run.everywhere()
        run.epoch(stop=2 * knobs.get("accumulate", 1))
        return {"taken": run.taken, "kept": run.kept(), "seen": seen}

    return _each(knobs, act)


def go_on(kept: dict[str, Any], **knobs: Any) -> dict[str, Any]:
    """The rest of that epoch, and another."""

    def act(kind: str) -> dict[str, Any]:
        run = Run(kind)
        run.load(kept[kind])
        run.epoch()
        run.epoch()
        return {"taken": run.taken, "weights": run.weights, "kept": run.kept()}

    return _each(knobs, act, seed=99)


def whole(*, plain: bool = True, **knobs: Any) -> dict[str, Any]:
    """The same in one go, without dream where it is plain."""

    def act(kind: str) -> dict[str, Any]:
        run = Run(kind)
        for epoch in range(2 if kind in SHORT else 3):
            run.epoch()
            if epoch == 0 and kind not in SHORT:
                run.everywhere()
        return {"taken": run.taken, "weights": run.weights}

    return _each({**knobs, "plain": plain} if plain else knobs, act)


def faults() -> dict[str, str]:
    """What each raises on this rank."""
    return {name: _raised(fault) for name, fault in FAULTS.items()}


def _raised(fault: Callable[[], None]) -> str:
    try:
        with dream.strategy():
            trains()
            fault()
    except dream.DreamError as error:
        return f"{type(error).__name__}: {error}"
    return "nothing was raised"


def trains() -> None:
    """Have the block train by gradients: before that, every rank has whole batches."""
    torch.optim.SGD([torch.zeros(1, requires_grad=True)])


def _rank() -> int:
    strategy = dream.current()
    assert strategy is not None
    return strategy.topology.rank


def stream_of_each_rank() -> None:
    """Taken apart by rank: dream would deal every part once more."""

    class Own(Stream):
        def __iter__(self) -> Iterator[Sample]:
            return (sample(index) for index in range(_rank(), SAMPLES, 2))

    for _ in DataLoader(Own(), batch_size=4):
        pass


def stream_that_ends_early() -> None:
    for _ in DataLoader(Stream(SAMPLES - 16 * _rank()), batch_size=BATCH):
        pass


def single_samples() -> None:
    DataLoader(Mapped(), batch_size=None)


def other_data() -> None:
    batches: Any = DataLoader(Mapped(), batch_size=4, shuffle=True)
    batches.load_state_dict({**batches.state_dict(), "length": 60})


def other_order() -> None:
    batches: Any = seeded_sampler()
    batches.load_state_dict({**batches.state_dict(), "batches": 1, "samples": 16, "digest": 7})
    for _ in batches:
        pass


def shorter_stream() -> None:
    batches: Any = DataLoader(Stream(20), batch_size=BATCH)
    batches.load_state_dict({**batches.state_dict(), "batches": 3, "samples": 48, "digest": 7})
    for _ in batches:
        pass


FAULTS: dict[str, Callable[[], None]] = {
    fault.__name__: fault
    for fault in (
        stream_of_each_rank,
        stream_that_ends_early,
        single_samples,
        other_data,
        other_order,
        shorter_stream,
    )
}


def fails_on_nothing() -> list[str]:
    """What is added to a loop's own error where its rank has none of the last batch's samples."""
    try:
        with dream.strategy("mirrored"):
            trains()
            for (x,) in DataLoader(TensorDataset(torch.zeros(17, 2)), batch_size=8):
                if not len(x):
                    raise ValueError("nothing")
    except ValueError as error:
        return getattr(error, "__notes__", [])
    return []


def fails_on_a_size() -> list[str]:
    """What is added to an error of the sizes that a rank has, and the global batch."""
    try:
        with dream.strategy("mirrored"):
            trains()
            for (x,) in DataLoader(TensorDataset(torch.zeros(17, 2)), batch_size=8):
                x + torch.zeros(8, 2)
    except RuntimeError as error:
        return getattr(error, "__notes__", [])
    return []
