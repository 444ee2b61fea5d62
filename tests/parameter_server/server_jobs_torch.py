"""What ranks of the torch jobs run, under dream.launch."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import torch
from server_job_marks import Uneven, meet
from torch import nn
from torch.nn import functional as F
from torch.optim import SGD, AdamW, Optimizer
from torch.optim.lr_scheduler import OneCycleLR, StepLR
from torch.utils.data import DataLoader, Dataset, TensorDataset

import dream

EPOCHS, BATCH, SAMPLES = 5, 16, 52  # 20 steps; the last batch has 4 samples


def data() -> TensorDataset:
    draw = np.random.default_rng(1)
    x = draw.normal(size=(SAMPLES, 8)).astype(np.float32)
    x *= draw.uniform(0.5, 2.0, size=(SAMPLES, 1)).astype(np.float32)
    return TensorDataset(torch.from_numpy(x), torch.from_numpy(np.abs(x[:, :4]).argmax(1)))


def net() -> nn.Module:
    """Other weights on each rank: rank 0's are to start."""
    torch.set_num_threads(1)
    torch.manual_seed(int(os.environ.get("RANK", "0")))
    return nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 4))


def optimizer_of(name: str, model: nn.Module) -> Optimizer:
    if name == "adamw":
        return AdamW(model.parameters(), lr=0.02)
    return SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=1e-3)


def explicit(name: str, options: dict[str, Any], optimizer: str) -> dict[str, Any]:
    """`train_step` to its end."""
    with dream.strategy(name, seed=0, **options) as strategy:
        model = net()
        step = strategy.train_step(model, F.cross_entropy, made := optimizer_of(optimizer, model))
        loader = DataLoader(data(), batch_size=BATCH, shuffle=True)
        losses = [float(step(*batch)) for _ in range(EPOCHS) for batch in loader]
    accuracy = strategy.evaluate(model, loader, {"right": _right})["right"]
    state = {k: v["momentum_buffer"].numpy() if "momentum_buffer" in v else float(v["step"])
             for k, v in made.state_dict()["state"].items()}  # fmt: skip
    return {
        "parameters": strategy.full_state(model),
        "losses": losses,
        "accuracy": accuracy,
        "state": state,
        "told": strategy.staleness() if name == "parameter_server" else None,
    }


def untouched(
    name: str, options: dict[str, Any], optimizer: str, readers: int = 0, folder: str = ""
) -> dict[str, Any]:
    """A loop of the user's own: schedules by batch and by epoch, and clipping. folder: where two
    workers meet in their first batches."""
    with dream.strategy(name, seed=0, **options) as strategy:
        model = net()
        made = optimizer_of(optimizer, model)
        by_batch = OneCycleLR(made, 0.05, total_steps=40, cycle_momentum=False)
        by_epoch = StepLR(made, 2, 0.5)
        loader = DataLoader(data(), batch_size=BATCH, shuffle=True, num_workers=readers)
        for _ in range(EPOCHS):
            for x, y in loader:
                if folder:
                    meet(folder, strategy.topology.rank, 2)
                made.zero_grad()
                F.cross_entropy(model(x), y).backward()
                nn.utils.clip_grad_norm_(model.parameters(), 0.5)
                made.step()
                by_batch.step()
            by_epoch.step()
    return {
        "parameters": strategy.full_state(model),
        "steps": (by_batch.last_epoch, by_epoch.last_epoch),
        "told": strategy.staleness() if name == "parameter_server" else None,
    }


class Noted(Dataset[tuple[torch.Tensor, torch.Tensor]]):
    """Writes down each sample that is read, in a file of the rank's."""

    def __init__(self, folder: str) -> None:
        self._inner = data()
        self._file = Path(folder) / f"read{os.environ['RANK']}"
        self._file.touch()  # who comes late may find nothing left to read

    def __len__(self) -> int:
        return SAMPLES

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        with self._file.open("a") as file:
            file.write(f"{index}\n")
        x, y = self._inner[index]
        return x, y


def uneven(folder: str, staleness: int | None, far: int) -> Any:
    """Rank 1 holds its first batch until rank 0 has so many."""
    with dream.strategy("parameter_server", staleness=staleness) as strategy:
        marks = Uneven(folder, strategy.topology.rank, far)
        model = net()
        made = optimizer_of("sgd", model)
        loader = DataLoader(Noted(folder), batch_size=4, shuffle=True)
        for _ in range(2):
            for x, y in loader:
                marks.begin_batch()
                made.zero_grad()
                F.cross_entropy(model(x), y).backward()
                made.step()
    return strategy.staleness(), strategy.full_state(model)


def refused(what: str) -> str:
    """The message of what a worker may not do."""
    with dream.strategy("parameter_server", staleness=0) as strategy:
        model = net()
        made = optimizer_of("sgd", model)
        loader = DataLoader(data(), batch_size=BATCH)
        try:
            if what == "loop":
                for x, y in loader:
                    F.cross_entropy(model(x), y).backward()
                    made.step()
            elif what == "communicator":
                strategy.communicator.barrier()
            elif what == "group":
                torch.distributed.init_process_group("gloo")
            elif what == "sampler":
                DataLoader(data(), batch_size=4, sampler=[1, 2, 3])
            elif what == "half":
                model.half()
                next(iter(loader))
            elif what == "two":
                second = SGD(model.parameters(), lr=0.1)
                next(iter(loader))
                second.step()
        except dream.DreamError as error:
            return str(error)
    return ""


def digits(name: str, options: dict[str, Any], seed: int) -> float:
    """Accuracy on the digits' test part."""
    from dream.tools.compare import tasks

    task = tasks.find("digits-mlp")
    held, weights = task.load(), tasks.first_weights(task, seed)
    with dream.strategy(name, seed=seed, **options) as strategy:
        model = nn.Sequential(nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10))
        with torch.no_grad():
            for parameter, value in zip(model.parameters(), weights.values(), strict=True):
                parameter.copy_(torch.from_numpy(value.T.copy()))
        made = SGD(model.parameters(), lr=0.02, momentum=0.9)
        step = strategy.train_step(model, F.cross_entropy, made)
        train = TensorDataset(torch.from_numpy(held.x), torch.from_numpy(held.y))
        loader = DataLoader(train, batch_size=64, shuffle=True)
        for _ in range(20):
            for batch in loader:
                step(*batch)
    test = TensorDataset(torch.from_numpy(held.x_test), torch.from_numpy(held.y_test))
    return strategy.evaluate(model, DataLoader(test, 64), {"right": _right})["right"]


def averaged(name: str, options: dict[str, Any], optimizer: str, loop: bool) -> dict[str, Any]:
    """For `local_sgd`."""
    with dream.strategy(name, seed=0, **options) as strategy:
        model = net()
        made = optimizer_of(optimizer, model)
        step = strategy.train_step(model, F.cross_entropy, made)
        loader = DataLoader(data(), batch_size=BATCH, shuffle=True)
        for _ in range(EPOCHS):
            for x, y in loader:
                if loop:
                    made.zero_grad()
                    F.cross_entropy(model(x), y, torch.tensor([0.2, 1.0, 2.0, 3.0])).backward()
                    made.step()
                else:
                    step(x, y)
    return {"parameters": {name: p.detach().numpy() for name, p in model.named_parameters()}}


def _right(prediction: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    return (prediction.argmax(1) == target).float()
