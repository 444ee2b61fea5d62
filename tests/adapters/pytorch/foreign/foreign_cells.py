"""What models are made of, and what reaches into them: each a loop that ends as without dream, or
is refused."""

from __future__ import annotations

import io
import traceback
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import torch
import torch.nn.functional as F
from foreign_scripts import CLASSES, FEATURES, GLOBAL, Block, data, momentum, net, weights
from torch import nn
from torch.func import functional_call, grad
from torch.nn.utils import parametrizations, rnn
from torch.utils.data import DataLoader, TensorDataset

import dream

WORDS, LONG = 9, 5


def words(samples: int = 53) -> TensorDataset:
    draw = torch.Generator().manual_seed(5)
    text = torch.randint(0, WORDS, (samples, LONG), generator=draw)
    return TensorDataset(text, torch.randint(0, CLASSES, (samples,), generator=draw))


def trained(
    model: nn.Module,
    dataset: TensorDataset,
    *optimizers: torch.optim.Optimizer,
    call: Callable[[torch.Tensor], torch.Tensor] | None = None,
) -> torch.Tensor:
    optimizers = optimizers or (torch.optim.SGD(model.parameters(), lr=0.1),)
    for x, y in DataLoader(dataset, batch_size=GLOBAL):
        for optimizer in optimizers:
            optimizer.zero_grad()
        F.cross_entropy((call or model)(x), y).backward()
        for optimizer in optimizers:
            optimizer.step()
    return weights(model)


class Bag(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.words, self.head = nn.Embedding(WORDS, 6, sparse=True), nn.Linear(6, CLASSES)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        output: torch.Tensor = self.head(self.words(x).mean(1))
        return output


class Reader(nn.Module):
    """packs: sequences by their lengths, which differ."""

    def __init__(self, *, packs: bool) -> None:
        super().__init__()
        self.packs = packs
        self.words, self.head = nn.Embedding(WORDS, 6), nn.Linear(5, CLASSES)
        self.cells = nn.LSTM(6, 5, batch_first=True)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        given: Any = self.words(x)
        if self.packs:
            lengths = (x != 0).sum(1).clamp(min=1)
            given = rnn.pack_padded_sequence(given, lengths, batch_first=True, enforce_sorted=False)
        _, (last, _) = self.cells(given)
        output: torch.Tensor = self.head(last[-1])
        return output


class Adapted(nn.Module):
    """A frozen layer with a small one beside it."""

    def __init__(self, base: nn.Linear) -> None:
        super().__init__()
        self.base = base.requires_grad_(False)
        self.down = nn.Parameter(0.1 * torch.randn(2, base.in_features))
        self.up = nn.Parameter(torch.zeros(base.out_features, 2))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        output: torch.Tensor = self.base(x) + x @ self.down.T @ self.up.T
        return output


def plain_net() -> nn.Sequential:
    return nn.Sequential(nn.Linear(FEATURES, 8), nn.ReLU(), nn.Linear(8, CLASSES))


def sparse_gradients(block: Block) -> torch.Tensor:
    with block:
        model = Bag()
        sparse = torch.optim.SparseAdam(model.words.parameters(), lr=0.01)
        return trained(model, words(), sparse, torch.optim.SGD(model.head.parameters(), lr=0.1))


def parametrized(block: Block) -> torch.Tensor:
    with block:
        first = parametrizations.spectral_norm(nn.Linear(FEATURES, 8))
        last = parametrizations.weight_norm(nn.Linear(8, CLASSES))
        return trained(nn.Sequential(first, nn.ReLU(), last), data())


def channels_last(block: Block) -> torch.Tensor:
    draw = torch.Generator().manual_seed(5)
    pictures = torch.randn(29, 3, 6, 6, generator=draw)
    labels = torch.randint(0, CLASSES, (29,), generator=draw)
    with block:
        model = nn.Sequential(
            nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(64, CLASSES)
        ).to(memory_format=torch.channels_last)
        return trained(
            model,
            TensorDataset(pictures, labels),
            call=lambda x: model(x.to(memory_format=torch.channels_last)),  # type: ignore[no-any-return]
        )


def lazy_layers(block: Block) -> torch.Tensor:
    """Shapes come by a call on no batch, with gradients on."""
    with block:
        model = nn.Sequential(
            nn.LazyLinear(8),
            nn.LazyBatchNorm1d(),
            nn.ReLU(),
            nn.Dropout(0.2),
            nn.LazyLinear(CLASSES),
        )
        model(torch.randn(4, FEATURES))
        return trained(model, data())


def packed_sequences(block: Block) -> torch.Tensor:
    with block:
        return trained(Reader(packs=True), words(48))


def recurrent_net_saved_whole(block: Block) -> torch.Tensor:
    with block:
        model = Reader(packs=False)
        trained(model, words())
        file = io.BytesIO()
        torch.save(model, file)
        file.seek(0)
        copy = torch.load(file, weights_only=False)
        with torch.no_grad():
            return torch.cat([weights(copy), copy(words().tensors[0]).reshape(-1)])


def small_layers_beside_frozen(block: Block) -> torch.Tensor:
    with block:
        model = plain_net()
        model[0], model[2] = Adapted(model[0]), Adapted(model[2])  # type: ignore[arg-type]
        own = [parameter for parameter in model.parameters() if parameter.requires_grad]
        return trained(model, data(), torch.optim.SGD(own, lr=0.1))


def called_functionally(block: Block) -> torch.Tensor:
    with block:
        model = plain_net()

        def call(x: torch.Tensor) -> torch.Tensor:
            output: torch.Tensor = functional_call(model, dict(model.named_parameters()), (x,))
            return output

        return trained(model, data(), call=call)


def compiled_with_batch_norm(block: Block) -> torch.Tensor:
    with block:
        model = net()
        compiled = torch.compile(model, backend="eager")
        return trained(model, data(), momentum(model), call=compiled)


def loss_compiled(block: Block) -> torch.Tensor:
    with block:
        model = plain_net()
        optimizer = momentum(model)

        @torch.compile(backend="eager")
        def loss(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
            return F.cross_entropy(model(x), y)

        for x, y in DataLoader(data(), batch_size=GLOBAL):
            optimizer.zero_grad()
            loss(x, y).backward()
            optimizer.step()
    return weights(model)


def regression_by_hand(block: Block) -> torch.Tensor:
    with block:
        slope = (0.1 * torch.randn(FEATURES, CLASSES)).requires_grad_()
        offset = torch.zeros(CLASSES, requires_grad=True)
        for x, y in DataLoader(data(), batch_size=GLOBAL):
            F.cross_entropy(x @ slope + offset, y).backward()
            with torch.no_grad():
                for parameter in (slope, offset):
                    assert parameter.grad is not None
                    parameter -= 0.1 * parameter.grad
                    parameter.grad = None
    return torch.cat([slope.detach().reshape(-1), offset.detach()])


def late_and_bare(block: Block) -> torch.Tensor:
    """A parameter of no module, which takes part from the fourth batch on."""
    with block:
        model, bare = net(), nn.Parameter(torch.ones(CLASSES))
        optimizer = torch.optim.SGD([*model.parameters(), bare], lr=0.1, momentum=0.9)
        step = 0
        for _ in range(2):
            for x, y in DataLoader(data(), batch_size=GLOBAL):
                step += 1
                output = model(x) * bare if step > 3 else model(x)
                optimizer.zero_grad()
                F.cross_entropy(output, y).backward()
                nn.utils.clip_grad_norm_([*model.parameters(), bare], 0.5)
                optimizer.step()
    return torch.cat([weights(model), bare.detach()])


CELLS: dict[str, Callable[[Block], torch.Tensor]] = {
    cell.__name__: cell
    for cell in (
        sparse_gradients, parametrized, channels_last, lazy_layers, packed_sequences,
        recurrent_net_saved_whole,
        small_layers_beside_frozen, called_functionally, compiled_with_batch_norm, loss_compiled,
        regression_by_hand, late_and_bare,
    )
}  # fmt: skip


def differentiated_by_functions() -> None:
    model = plain_net()
    held = {name: parameter.detach() for name, parameter in model.named_parameters()}

    def loss(parameters: dict[str, torch.Tensor], x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return F.cross_entropy(functional_call(model, parameters, (x,)), y)

    for x, y in DataLoader(data(), batch_size=GLOBAL):
        grad(loss)(held, x, y)


def run_all(plain: bool) -> dict[str, Any]:
    torch.set_num_threads(1)
    results: dict[str, Any] = {}
    for name, cell in CELLS.items():
        torch.manual_seed(1)
        try:
            results[name] = cell(nullcontext() if plain else dream.strategy("mirrored")).numpy()
        except Exception:
            results[name] = traceback.format_exc()
    if not plain:
        try:
            with dream.strategy("mirrored"):
                differentiated_by_functions()
        except dream.Unsupported as error:
            results["differentiated_by_functions"] = str(error)
    return results
