"""What a torch rank does, alone or beside TensorFlow's: loops as a user writes them. A case gives
its weights in Keras's layout."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import mixed_fit
import numpy as np
import torch
from mixed_data import BATCH, CLASSES, EPOCHS, HIDDEN, INPUTS, SEED, WORDS, images, numbers, words
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, RandomSampler, TensorDataset

import dream

Figures = Any
MOMENTUM = {"lr": 0.1, "momentum": 0.9}
ADAMW = {"lr": 0.01, "eps": 1e-7, "weight_decay": 0.01}


def block(**options: Any) -> Any:
    return dream.strategy(None, seed=SEED, **options)


def mlp(hidden: int = HIDDEN) -> nn.Module:
    torch.manual_seed(7)
    return nn.Sequential(nn.Linear(INPUTS, hidden), nn.ReLU(), nn.Linear(hidden, CLASSES))


def loader(arrays: tuple[np.ndarray, np.ndarray], **options: Any) -> Any:
    tensors = TensorDataset(*map(torch.from_numpy, arrays))
    return DataLoader(tensors, batch_size=BATCH, **{"shuffle": True, **options})


def loop(model: nn.Module, optimizer: Any, batches: Any, epochs: int = EPOCHS) -> None:
    for _ in range(epochs):
        for x, y in batches:
            optimizer.zero_grad()
            F.cross_entropy(model(x), y).backward()
            optimizer.step()


def weights_of(model: nn.Module) -> list[np.ndarray]:
    """Linear is (out, in), Dense (in, out)."""
    values = [v.detach().numpy() for v in model.state_dict().values() if v.dim()]
    return [v.T if v.ndim == 2 else v for v in values]


def momentum() -> Figures:
    with block() as strategy:
        model = mlp()
        batches = loader(numbers())
        loop(model, torch.optim.SGD(model.parameters(), **MOMENTUM), batches)
        right = {"right": lambda said, y: (said.argmax(1) == y).float()}
        said = strategy.evaluate(model, loader(numbers(), shuffle=False), right)
    return weights_of(model), said["right"]


def adamw() -> Figures:
    with block():
        model = mlp()
        loop(model, torch.optim.AdamW(model.parameters(), **ADAMW), loader(numbers()))
    return weights_of(model)


def outside() -> Figures:
    """Made in the block, trained after it."""
    with block():
        model = mlp()
        batches = loader(numbers())
    loop(model, torch.optim.SGD(model.parameters(), **MOMENTUM), batches, 1)
    return weights_of(model)


def counted() -> Figures:
    """A mean over things, of which samples have several or none."""
    with block() as strategy:
        model = mlp()
        optimizer = torch.optim.SGD(model.parameters(), **MOMENTUM)
        for x, y in loader(numbers()):
            optimizer.zero_grad(set_to_none=False)
            count = y.sum()
            each = F.cross_entropy(model(x), y, reduction="none")
            loss = (each * y).sum() / count if count else (each * 0).sum()
            strategy.weigh(loss, count).backward()
            optimizer.step()
    return weights_of(model)


def steps() -> Figures:
    """The explicit form: the loss is global, on every rank."""
    with block() as strategy:
        model = mlp()
        optimizer = torch.optim.SGD(model.parameters(), **MOMENTUM)
        step = strategy.train_step(model, F.cross_entropy, optimizer)
        losses = [float(step(x, y)) for x, y in loader(numbers())]
    return weights_of(model), losses


class Sentences(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(8)
        self.embed = nn.Embedding(WORDS, 6)
        self.norm = nn.LayerNorm(6, eps=1e-3)
        self.attend = nn.MultiheadAttention(6, 2, batch_first=True)
        self.gru = nn.GRU(6, 5, batch_first=True)
        self.out = nn.Linear(5, CLASSES)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.norm(self.embed(x))
        x = x + self.attend(x, x, x, need_weights=False)[0]
        return self.out(self.gru(x)[0][:, -1])


def sentences() -> Figures:
    with block():
        model = Sentences()
        loop(model, torch.optim.SGD(model.parameters(), lr=0.1), loader(words()))
    return [model.embed.weight.detach().numpy(), model.out.weight.detach().numpy().T]


class Pictures(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(9)
        self.first = nn.Conv2d(2, 6, 3, stride=2)
        self.norm = nn.BatchNorm2d(6, eps=1e-3, momentum=0.01)
        self.out = nn.Linear(6 * 3 * 3, CLASSES)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.out(F.relu(self.norm(self.first(x))).flatten(1))


def pictures() -> Figures:
    x, y = images()
    with block(sync_batch_norm=False):
        model = Pictures()
        batches = loader((np.ascontiguousarray(x.transpose(0, 3, 1, 2)), y))
        loop(model, torch.optim.SGD(model.parameters(), **MOMENTUM), batches)
    conv, *norm = [v.detach().numpy() for v in model.state_dict().values() if v.dim()][:6]
    out = model.out.weight.detach().numpy().reshape(CLASSES, 6, 3, 3).transpose(2, 3, 1, 0)
    return [conv.transpose(2, 3, 1, 0), *norm, out.reshape(-1, CLASSES)]


def keras_steps() -> Figures:
    """Keras's optimizer on torch beside Keras's on TensorFlow: one arithmetic, one state."""
    model = mixed_fit.model_of()
    with block() as strategy:
        model, optimizer = strategy.prepare(model, mixed_fit.keras.optimizers.AdamW(0.001))
        step = strategy.train_step(model, mixed_fit.LOSS, optimizer)
        batches = loader(numbers())
        losses = [float(step(x, y)) for _ in range(2) for x, y in batches]
    return model.get_weights(), losses


def communicator() -> Figures:
    """Without a strategy: the ring is what all can stand in."""
    made = dream.communicator()
    return made.reduction, made.all_reduce(torch.ones(3) * made.rank, "sum").numpy()


def drifted(resync: int) -> Figures:
    """TensorFlow's rank is pushed aside after the first step."""
    with block(resync=resync):
        model = mlp()
        loop(model, torch.optim.SGD(model.parameters(), **MOMENTUM), loader(numbers(60)), 1)
    return weights_of(model)


CASES: dict[str, Callable[[], Figures]] = {
    "momentum": momentum, "adamw": adamw, "outside": outside, "counted": counted, "steps": steps,
    "sentences": sentences, "fit": mixed_fit.mlp, "fit batches": mixed_fit.batches,
    "fit outputs": mixed_fit.outputs, "looked up": mixed_fit.looked_up,
    "fit adamw": mixed_fit.adamw,
    "batch by batch": mixed_fit.batch_by_batch, "keras steps": keras_steps,
    "communicator": communicator,
}  # fmt: skip
TWO: dict[str, Callable[[], Figures]] = {
    "pictures": pictures, "fit pictures": mixed_fit.pictures,
}  # fmt: skip
FEW: dict[str, Callable[[], Figures]] = {"momentum": momentum, "fit": mixed_fit.mlp}


def other_shape() -> Figures:
    with block():
        model = mlp(HIDDEN + 1)
        loop(model, torch.optim.SGD(model.parameters(), **MOMENTUM), loader(numbers()))


def other_kind() -> Figures:
    with block():
        model = nn.Sequential(nn.LayerNorm(INPUTS), mlp())
        loop(model, torch.optim.SGD(model.parameters(), **MOMENTUM), loader(numbers()))


def frozen() -> Figures:
    with block():
        model = mlp()
        model[0].requires_grad_(False)
        loop(model, torch.optim.SGD(model[2].parameters(), **MOMENTUM), loader(numbers()))


def other_order() -> Figures:
    with block():
        model = mlp()
        optimizer = torch.optim.SGD(model.parameters(), **MOMENTUM)
        loop(model, optimizer, loader(numbers(), shuffle=False))


class Forgets(nn.Module):
    """Has a bias that it does not add."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = mlp()[0], mlp()[2]

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return F.linear(F.relu(self.first(x)), self.last.weight)


def unused() -> Figures:
    with block():
        model = Forgets()
        loop(model, torch.optim.SGD(model.parameters(), **MOMENTUM), loader(numbers()))


def frozen_later() -> Figures:
    """Seen before anything is said, so the other rank need not come twice."""
    with block() as strategy:
        model = mlp()
        step = strategy.train_step(
            model, F.cross_entropy, torch.optim.SGD(model.parameters(), **MOMENTUM)
        )
        x, y = map(torch.from_numpy, numbers(4))
        step(x, y)
        model[0].requires_grad_(False)
        step(x, y)


def fit_beside_steps() -> Figures:
    return momentum()


def two_biases() -> Figures:
    """Refused before a word is said, so the other rank need not come."""
    with block():
        return nn.LSTM(3, 4)(torch.zeros(1, 2, 3))


def own_sampler() -> Figures:
    data = TensorDataset(*map(torch.from_numpy, numbers()))
    with block():
        DataLoader(data, batch_size=BATCH, sampler=RandomSampler(data))


def gloo() -> Figures:
    with block(reduction="gloo"):
        pass


def compressed() -> Figures:
    with block(compression="float16"):
        pass


def adasum() -> Figures:
    with block(op="adasum"):
        pass


def another_seed() -> Figures:
    with dream.strategy(seed=SEED + 1):
        pass


def own_loop() -> Figures:
    with block():
        pass


REFUSALS: dict[str, Callable[[], Figures]] = {
    "other shape": other_shape, "other kind": other_kind, "frozen": frozen,
    "other order": other_order, "fit beside steps": fit_beside_steps, "two biases": two_biases,
    "own sampler": own_sampler, "gloo": gloo, "compressed": compressed, "adasum": adasum,
    "another seed": another_seed, "own loop": own_loop,
    "frozen later": frozen_later, "unused": unused, "other batches": mixed_fit.other_batches,
    "after all that": momentum,
    "resynced": lambda: drifted(2), "left apart": lambda: drifted(0),
}  # fmt: skip
