"""Scripts as strangers write them, each with a loss that is no plain mean over samples. A script
trains and returns its parameters and what it printed; nothing in it knows of dream."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

Trained = tuple[list[torch.Tensor], list[float]]
"""(parameters, what the loop printed)"""
SAMPLES, BATCH, WIDTH, CLASSES = 21, 8, 6, 4


def numbers(*shape: int, seed: int) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def integers(most: int, *shape: int, seed: int) -> torch.Tensor:
    return torch.randint(most, shape, generator=torch.Generator().manual_seed(seed))


def mlp(outputs: int = CLASSES, inputs: int = WIDTH) -> nn.Module:
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(inputs, 9), nn.Tanh(), nn.Linear(9, outputs))


def classes(*, shuffle: bool = False, samples: int = SAMPLES) -> DataLoader[Any]:
    drawn = numbers(37, WIDTH, seed=2), integers(CLASSES, 37, seed=3), numbers(37, seed=4)
    data = TensorDataset(*(each[:samples] for each in drawn))
    return DataLoader(data, batch_size=BATCH, shuffle=shuffle)


def trained(model: nn.Module, printed: list[float], *others: nn.Module) -> Trained:
    parameters = [p.detach().clone() for m in (model, *others) for p in m.parameters()]
    return parameters, printed


def loop(
    model: nn.Module,
    loss: Callable[[nn.Module, Any], torch.Tensor],
    batches: Any = None,
    *,
    epochs: int = 2,
    rate: float = 0.05,
) -> Trained:
    loader = classes() if batches is None else batches
    optimizer = torch.optim.SGD(model.parameters(), lr=rate, momentum=0.9)
    printed = []
    for _ in range(epochs):
        for batch in loader:
            optimizer.zero_grad()
            value = loss(model, batch)
            value.backward()
            optimizer.step()
            printed.append(value.item())
    return trained(model, printed)


def over_as_many_elements_as_rows() -> Trained:
    """A rank's last row has as many elements as the last batch has rows."""

    def loss(model: nn.Module, batch: Any) -> torch.Tensor:
        made = model(batch[0])
        return (made - batch[0][:, :3]).square().sum() / made.numel()

    return loop(mlp(3), loss, classes(samples=19))


def mean() -> Trained:
    return loop(mlp(), lambda m, b: F.cross_entropy(m(b[0]), b[1]))


def summed() -> Trained:
    return loop(mlp(), lambda m, b: F.cross_entropy(m(b[0]), b[1], reduction="sum"), rate=0.005)


def sum_over_batch_size() -> Trained:
    def loss(m: nn.Module, b: Any) -> torch.Tensor:
        return F.mse_loss(m(b[0]).squeeze(1), b[2], reduction="sum") / BATCH

    return loop(mlp(1), loss)


def sum_over_rows() -> Trained:
    def loss(m: nn.Module, b: Any) -> torch.Tensor:
        return (m(b[0]) - F.one_hot(b[1], CLASSES)).square().sum() / len(b[0])

    return loop(mlp(), loss)


def mean_times_rows() -> Trained:
    """Which is a sum, and cannot be told from a mean that is scaled by a constant."""
    even = DataLoader(TensorDataset(numbers(12, WIDTH, seed=4), integers(CLASSES, 12, seed=5)), 6)
    model = mlp()
    optimizer = torch.optim.SGD(model.parameters(), 0.01)
    for x, y in even:
        optimizer.zero_grad()
        (F.cross_entropy(model(x), y) * len(x)).backward()
        optimizer.step()
    return [p.detach().clone() for p in model.parameters()], []


def mean_of_means() -> Trained:
    def loss(m: nn.Module, b: Any) -> torch.Tensor:
        return (m(b[0]) - F.one_hot(b[1], CLASSES)).square().mean(1).mean() * 3.0

    return loop(mlp(), loss)


def mean_then_sum() -> Trained:
    def loss(m: nn.Module, b: Any) -> torch.Tensor:
        return (m(b[0]) - F.one_hot(b[1], CLASSES)).square().mean(0).sum()

    return loop(mlp(), loss)


def over_its_own_length() -> Trained:
    """A share of one sample has one length, which is no count of all samples'."""

    def loss(m: nn.Module, b: Any) -> torch.Tensor:
        each = F.cross_entropy(m(b[0]), b[1], reduction="none")
        return (each / (b[1] + 1)).mean()

    return loop(mlp(), loss)


def class_weights() -> Trained:
    weight = torch.tensor([0.2, 1.0, 3.0, 0.5])
    return loop(mlp(), lambda m, b: F.cross_entropy(m(b[0]), b[1], weight=weight))


def label_smoothing() -> Trained:
    return loop(mlp(), lambda m, b: F.cross_entropy(m(b[0]), b[1], label_smoothing=0.1))


def label_smoothing_of_some() -> Trained:
    """Weights of classes, and targets that are ignored: both parts are over the same weights."""
    weight = torch.tensor([0.2, 1.0, 3.0, 0.5])

    def loss(m: nn.Module, b: Any) -> torch.Tensor:
        target = torch.where(b[2] > 0.5, -100, b[1])
        return F.cross_entropy(m(b[0]), target, weight=weight, label_smoothing=0.1)

    return loop(mlp(), loss)


def soft_targets() -> Trained:
    def loss(m: nn.Module, b: Any) -> torch.Tensor:
        return F.cross_entropy(m(b[0]), F.softmax(b[0][:, :CLASSES], 1))

    return loop(mlp(), loss)


def batchmean() -> Trained:
    def loss(m: nn.Module, b: Any) -> torch.Tensor:
        target = F.softmax(b[0][:, :CLASSES], 1)
        return F.kl_div(F.log_softmax(m(b[0]), 1), target, reduction="batchmean")

    return loop(mlp(), loss)


def masked_mean() -> Trained:
    def loss(m: nn.Module, b: Any) -> torch.Tensor:
        mask = (b[2] > 0.3).float()
        each = F.cross_entropy(m(b[0]), b[1], reduction="none")
        return (each * mask).sum() / mask.sum()

    return loop(mlp(), loss)


def boolean_mask() -> Trained:
    def loss(m: nn.Module, b: Any) -> torch.Tensor:
        kept = b[2] > -0.4
        return F.mse_loss(m(b[0])[kept], F.one_hot(b[1], CLASSES).float()[kept])

    return loop(mlp(), loss)


def nothing_that_counts(instead: float = 0.0) -> Trained:
    """A rank's rows may hold none of what the loss is a mean over. instead: from the
    second batch on."""
    seen = itertools.count()

    def loss(m: nn.Module, b: Any) -> torch.Tensor:
        out, factor = m(b[0]), instead if next(seen) else 0.0
        kept = out[(b[0][:, :CLASSES] > -0.5) & (b[2] > 0.9)[:, None]]
        return kept.mean() if kept.numel() else out.sum() * factor

    return loop(mlp(), loss, epochs=6)


def nothing_to_add_up() -> Trained:
    """A rank's rows may hold none of what the loss is a sum of, in the first batch too."""

    def loss(m: nn.Module, b: Any) -> torch.Tensor:
        out, kept = m(b[0]), b[2] > 0.9
        return out[kept].square().sum() if int(kept.sum()) else out.sum() * 0

    return loop(mlp(), loss, rate=0.01, epochs=3)


def half_a_sum_of_some() -> Trained:
    def loss(m: nn.Module, b: Any) -> torch.Tensor:
        kept = b[2] > -0.4
        return 0.5 * F.mse_loss(m(b[0]).squeeze(1)[kept], b[2][kept], reduction="sum")

    return loop(mlp(1), loss, rate=0.01)


def sum_of_some_over_their_number() -> Trained:
    def loss(m: nn.Module, b: Any) -> torch.Tensor:
        kept = b[2] > -0.4
        value = F.mse_loss(m(b[0]).squeeze(1)[kept], b[2][kept], reduction="sum")
        return value / max(1, int(kept.sum()))

    return loop(mlp(1), loss)


def over_a_clamped_sum() -> Trained:
    """Some batches have no positive on some rank, or on none."""

    def loss(m: nn.Module, b: Any) -> torch.Tensor:
        positive = (b[2] > 1.0).float()
        each = F.binary_cross_entropy_with_logits(m(b[0]).squeeze(1), positive, reduction="none")
        return each.sum() / positive.sum().clamp(min=1.0)

    return loop(mlp(1), loss, rate=0.01)


def over_a_count_or_one() -> Trained:
    """Where there is no positive, the divisor is a number, else a tensor."""

    def loss(m: nn.Module, b: Any) -> torch.Tensor:
        positive = (b[2] > 0.4).float()
        each = F.binary_cross_entropy_with_logits(m(b[0]).squeeze(1), positive, reduction="none")
        return each.sum() / max(positive.sum(), 1)

    return loop(mlp(1), loss, rate=0.01)


def over_a_count_or_a_tensor() -> Trained:
    """The floor is a tensor, on either side."""

    def loss(m: nn.Module, b: Any) -> torch.Tensor:
        positive = (b[2] > 1.0).float()
        each = F.binary_cross_entropy_with_logits(m(b[0]).squeeze(1), positive, reduction="none")
        one, many = torch.tensor(1.0), positive.sum()
        return each.sum() / torch.maximum(many, one) + each.sum() / one.maximum(many)

    return loop(mlp(1), loss, rate=0.01)


def over_a_count_and_a_little() -> Trained:
    """Against a division by nothing, which some rank has."""

    def loss(m: nn.Module, b: Any) -> torch.Tensor:
        mask = (b[2] > 1.0).float()
        each = F.cross_entropy(m(b[0]), b[1], reduction="none")
        return (each * mask).sum() / (mask.sum() + 1e-8)

    return loop(mlp(), loss)


def over_a_full_mask() -> Trained:
    """The same number on every rank, and a count."""

    def loss(m: nn.Module, b: Any) -> torch.Tensor:
        mask = (b[2] > -100.0).float()
        each = F.cross_entropy(m(b[0]), b[1], reduction="none")
        return (each * mask).sum() / mask.sum()

    return loop(mlp(), loss)


def tokens_over_their_number() -> Trained:
    def loss(m: nn.Module, b: Any) -> torch.Tensor:
        scores = m(b[0], b[1]).view(-1, 11)
        return F.cross_entropy(scores, b[1].view(-1), reduction="sum") / (b[1] != -100).sum()

    return loop(Tokens(), loss, texts())


def over_a_count_and_one() -> Trained:
    """Each rank adds its own one: that is said, and not what one device learns."""

    def loss(m: nn.Module, b: Any) -> torch.Tensor:
        mask = (b[2] > 0.3).float()
        each = F.cross_entropy(m(b[0]), b[1], reduction="none")
        return (each * mask).sum() / (mask.sum() + 1.0)

    return loop(mlp(), loss)


def over_a_count_as_a_number() -> Trained:
    def loss(m: nn.Module, b: Any) -> torch.Tensor:
        mask = (b[2] > 0.3).float()
        each = F.cross_entropy(m(b[0]), b[1], reduction="none")
        return (each * mask).sum() / mask.sum().item()

    return loop(mlp(), loss)


def tokens_over_a_number_that_is_alike_at_first() -> Trained:
    """Two ranks count two each of the first batch, which is fewer than they have."""
    x, y = numbers(SAMPLES, WIDTH, seed=2), integers(CLASSES, SAMPLES, seed=3)
    y[:4] = y[9::3] = -100

    def loss(m: nn.Module, b: Any) -> torch.Tensor:
        counted = max(1, int((b[1] != -100).sum()))
        return F.cross_entropy(m(b[0]), b[1], reduction="sum") / counted

    return loop(mlp(), loss, DataLoader(TensorDataset(x, y), batch_size=BATCH))


def a_temperature_by_itself() -> Trained:
    """As SAC has it: a number of no module, over what a model gave; a share has a single row."""
    model, printed = mlp(), []
    heat = torch.zeros(1, requires_grad=True)
    both = [torch.optim.SGD(model.parameters(), lr=0.05), torch.optim.SGD([heat], lr=0.1)]
    data = TensorDataset(numbers(SAMPLES, WIDTH, seed=2), integers(CLASSES, SAMPLES, seed=3))
    for x, y in DataLoader(data, batch_size=5):
        each = F.cross_entropy(model(x), y, reduction="none")
        for optimizer, loss in zip(
            both, (each.mean(), (heat.exp() * (each.detach() - 1.0)).mean()), strict=True
        ):
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            printed.append(loss.item())
    return [*trained(model, printed)[0], heat.detach().clone()], printed


def over_a_mask_or_one_as_a_number() -> Trained:
    """Some ranks have nothing to count of some batches, and some a single row."""

    def loss(m: nn.Module, b: Any) -> torch.Tensor:
        mask = b[2] > 1.0
        each = F.cross_entropy(m(b[0]), b[1], reduction="none")
        return (each * mask).sum() / max(1, int(mask.sum()))

    return loop(mlp(), loss, rate=0.01)


def over_positives_or_one_as_a_number() -> Trained:
    """Rank 0 has none of a batch, and nothing tells: that is said; one device learns another."""

    def loss(m: nn.Module, b: Any) -> torch.Tensor:
        positive = (b[2] > 0.4).float()
        each = F.binary_cross_entropy_with_logits(m(b[0]).squeeze(1), positive, reduction="none")
        return each.sum() / max(1, int(positive.sum()))

    return loop(mlp(1), loss, rate=0.01)


def over_the_batch_size_as_a_tensor() -> Trained:
    def loss(m: nn.Module, b: Any) -> torch.Tensor:
        error = m(b[0]).squeeze(1) - b[2]
        return error.square().sum() / torch.tensor(float(BATCH))

    return loop(mlp(1), loss)


def a_sum_by_a_schedule() -> Trained:
    """The number changes with every step, alike on all ranks."""
    steps = iter(range(1, 100))

    def loss(m: nn.Module, b: Any) -> torch.Tensor:
        return (m(b[0]).squeeze(1) - b[2]).square().sum() * (0.01 / next(steps))

    return loop(mlp(1), loss)


def one_sample_at_a_time() -> Trained:
    """Each is divided by its own number, or all of them by that of all."""
    data = [(x, y, (n % 4) + 1) for n, (x, y, _) in enumerate(classes().dataset)]
    model = mlp()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    printed = []
    for epoch in range(4):
        for x, y, lengths in DataLoader(data, batch_size=BATCH):
            optimizer.zero_grad()
            out, many = model(x), lengths.tolist()
            each = [(out[i, : many[i]] - y[i]).square().sum() for i in range(len(y))]
            if epoch == 0:
                loss = torch.stack([a / n for a, n in zip(each, many, strict=True)]).mean()
            elif epoch == 1:
                loss = sum(each) / max(1, sum(many))
            elif epoch == 2:
                loss = sum(each) / lengths.sum()
            else:
                loss = 0.1 * sum(a / n for a, n in zip(each, many, strict=True)) / len(y)
            loss.backward()
            optimizer.step()
            printed.append(loss.item())
    return trained(model, printed)


def one_sample_over_the_batch_size() -> Trained:
    """Each loss is one number of its row, with nothing summed; the divisor is a constant."""

    def loss(m: nn.Module, b: Any) -> Any:
        return sum(F.cross_entropy(o, y) for o, y in zip(m(b[0]), b[1], strict=True)) / BATCH

    return loop(mlp(7), loss)


def one_sample_by_weights() -> Trained:
    """Each is weighed by a number of its own, and all are divided by the sum of these."""

    def loss(m: nn.Module, b: Any) -> Any:
        many = [1.5 + each for each in b[1].tolist()]
        each = (F.cross_entropy(o, y) for o, y in zip(m(b[0]), b[1], strict=True))
        return sum(n * a for n, a in zip(many, each, strict=True)) / sum(many)

    return loop(mlp(7), loss)


def tokens_of_several_batches() -> Trained:
    """Summed, over the number of all that an update has: of the last one a rank may have none."""
    model = mlp()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    data = TensorDataset(numbers(25, WIDTH, seed=2), integers(CLASSES, 25, seed=3))
    batches = iter(DataLoader(data, batch_size=8))
    for _ in range(2):
        several = [*itertools.islice(batches, 2)]
        many = sum((y != 0).sum() for _, y in several)
        for x, y in several:
            (F.cross_entropy(model(x), y, ignore_index=0, reduction="sum") / many).backward()
        optimizer.step()
        optimizer.zero_grad()
    return [p.detach().clone() for p in model.parameters()], []


def penalty() -> Trained:
    def loss(m: nn.Module, b: Any) -> torch.Tensor:
        norm = sum(p.pow(2).sum() for p in m.parameters())
        return F.cross_entropy(m(b[0]), b[1]) + 0.01 * norm

    return loop(mlp(), loss)


def penalties_of_many_kinds() -> Trained:
    """As elastic weights have it: by how much each parameter matters, how far it is from before."""
    anchor = mlp()
    model = mlp()
    pairs = [*zip(model.parameters(), (p.detach() for p in anchor.parameters()), strict=True)]

    def loss(m: nn.Module, b: Any) -> torch.Tensor:
        far = sum((q.abs() * (p - q) ** 2).sum() for p, q in pairs)
        far = far + sum(F.mse_loss(p, q, reduction="sum") for p, q in pairs)
        far = far + sum(torch.log1p(p**2).sum() for p, _ in pairs)
        far = far + sum(torch.where(q > 0.0, p, 0.0).abs().sum() for p, q in pairs)
        far = far + sum(p.logsumexp(0).sum() + p.amax(0).sum() for p, _ in pairs)
        return F.cross_entropy(m(b[0]), b[1]) + 0.01 * far

    return loop(model, loss)


def penalties_on_chosen_parameters() -> Trained:
    """By a mask, by numbers, by what is fixed: all ranks have them alike."""
    picked, fixed = torch.tensor([0, 2, 5, 7]), numbers(9, 9, seed=7)
    kernel = torch.tensor([[[1.0, -2.0, 1.0]]])

    def loss(m: Any, b: Any) -> torch.Tensor:
        w, bias = m[0].weight, m[0].bias
        far = w[w.abs() < 0.2].abs().sum() + w.masked_select(w > 0.1).sum()
        far = far + w[picked].abs().sum() + w.T[[0, 1]].square().mean() + w.take(picked).exp().sum()
        far = far + F.binary_cross_entropy_with_logits(w, 0.5 + 0.0 * w.detach(), reduction="sum")
        far = far + F.cross_entropy(w[:4], torch.arange(4), reduction="sum")
        far = far + F.conv1d(w[:, None], kernel).square().sum() + (fixed @ bias).abs().sum()
        far = far + w.abs().flatten().topk(5)[0].sum() + w.repeat(2, 1).atan().square().sum()
        return F.mse_loss(m(b[0])[:, 0], b[2], reduction="sum") + 0.02 * far

    return loop(mlp(), loss, rate=0.005)


def penalties_on_what_rows_choose() -> Trained:
    """Which are of data."""

    def loss(m: Any, b: Any) -> torch.Tensor:
        w, bias = m[2].weight, m[0].weight[0]
        chosen = F.embedding(b[1], w).square().sum() + w[b[1]].abs().sum() + (b[0] @ bias).sum()
        return F.cross_entropy(m(b[0]), b[1], reduction="sum") + 0.1 * chosen

    return loop(mlp(), loss, rate=0.005)


def a_part_that_is_compared() -> Trained:
    """A parameter with a batch's rows is data."""

    class Centre(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.at = nn.Parameter(torch.linspace(-1.0, 1.0, WIDTH))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            far = F.mse_loss(self.at.expand_as(x), x, reduction="sum")
            return far / len(x) + (self.at - x).square().mean() + (self.at * x).tanh().mean()

    return loop(Centre(), lambda m, b: m(b[0]))


def penalty_on_sum() -> Trained:
    def loss(m: nn.Module, b: Any) -> torch.Tensor:
        value = F.mse_loss(m(b[0]).squeeze(1), b[2], reduction="sum")
        for p in m.parameters():
            value = value + 0.02 * p.abs().sum()
        return value

    return loop(mlp(1), loss, rate=0.005)


def two_kinds() -> Trained:
    def loss(m: nn.Module, b: Any) -> torch.Tensor:
        out = m(b[0])
        weight = torch.tensor([0.2, 1.0, 3.0, 0.5])
        return F.cross_entropy(out, b[1], weight=weight) + 0.1 * out.square().sum() + out.mean()

    return loop(mlp(), loss, rate=0.01)


class Tokens(nn.Module):
    """A tiny language model; it returns its loss, as many do."""

    def __init__(self, *, own_loss: bool = False) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.embed, self.head = nn.Embedding(11, 5), nn.Linear(5, 11)
        self.own_loss = own_loss

    def forward(self, tokens: torch.Tensor, targets: torch.Tensor) -> Any:
        logits = self.head(torch.tanh(self.embed(tokens)))
        if not self.own_loss:
            return logits
        return logits, F.cross_entropy(logits.view(-1, 11), targets.view(-1), ignore_index=-100)


def texts() -> DataLoader[Any]:
    tokens = integers(11, SAMPLES, 7, seed=5)
    targets = integers(11, SAMPLES, 7, seed=6)
    targets[torch.arange(7) >= integers(7, SAMPLES, seed=7).unsqueeze(1) + 1] = -100
    return DataLoader(TensorDataset(tokens, targets), batch_size=BATCH)


def tokens() -> Trained:
    def loss(m: nn.Module, b: Any) -> torch.Tensor:
        return F.cross_entropy(m(b[0], b[1]).view(-1, 11), b[1].view(-1))

    return loop(Tokens(), loss, texts())


def tokens_in_the_model() -> Trained:
    return loop(Tokens(own_loss=True), lambda m, b: m(b[0], b[1])[1], texts())


def accumulated() -> Trained:
    """Two batches to a step, by hand."""
    model, loader = Tokens(), texts()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    printed = []
    for _ in range(2):
        for index, (x, y) in enumerate(loader):
            value = F.cross_entropy(model(x, y).view(-1, 11), y.view(-1))
            (value / 2).backward()
            if index % 2 == 1:
                optimizer.step()
                optimizer.zero_grad()
    return trained(model, printed)


class Vae(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.encode, self.decode = nn.Linear(WIDTH, 4), nn.Linear(2, WIDTH)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        mean, spread = self.encode(x).chunk(2, 1)
        return torch.sigmoid(self.decode(mean + 0.1 * torch.exp(0.5 * spread))), mean, spread


def vae() -> Trained:
    def loss(m: nn.Module, b: Any) -> torch.Tensor:
        again, mean, spread = m(b[0])
        bce = F.binary_cross_entropy(again, torch.sigmoid(b[0]), reduction="sum")
        kld = -0.5 * torch.sum(1 + spread - mean.pow(2) - spread.exp())
        return bce + kld

    return loop(Vae(), loss, rate=0.003)


def zipped() -> Trained:
    """Two loaders of other lengths and batch sizes, one backward."""
    model = mlp()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    other = DataLoader(
        TensorDataset(numbers(23, WIDTH, seed=8), integers(CLASSES, 23, seed=9)), batch_size=5
    )
    printed = []
    for (x, y, _), (u, v) in zip(classes(), other, strict=False):
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x), y) + 0.5 * F.cross_entropy(model(u), v)
        loss.backward()
        optimizer.step()
    return trained(model, printed)


def other_inside() -> Trained:
    """A batch of another loader is taken in the middle of a step."""
    model = mlp()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    other = DataLoader(TensorDataset(numbers(5, WIDTH, seed=8)), batch_size=5)
    printed = []
    for x, y, _ in classes():
        optimizer.zero_grad()
        next(iter(other))
        loss = F.cross_entropy(model(x * 2.0), y)
        loss.backward()
        optimizer.step()
        printed.append(loss.item())
    return trained(model, printed)


def read_ahead() -> Trained:
    """A prefetcher, which copies what it reads."""

    def ahead() -> Any:
        waiting = None
        for x, y, _ in classes():
            read = (x.clone(), y.clone())
            if waiting is not None:
                yield waiting
            waiting = read
        yield waiting

    model = mlp()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    printed = []
    for x, y in ahead():
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        printed.append(loss.item())
    return trained(model, printed)


def line_search() -> Trained:
    """LBFGS, whose closure's value decides how far it goes."""
    model = mlp()
    optimizer = torch.optim.LBFGS(
        model.parameters(), lr=0.5, max_iter=4, line_search_fn="strong_wolfe"
    )
    printed = []
    for x, y, _ in classes(samples=37):

        def closure(x: torch.Tensor = x, y: torch.Tensor = y) -> torch.Tensor:
            optimizer.zero_grad()
            loss = F.cross_entropy(model(x), y)
            loss.backward()
            return loss

        optimizer.step(closure)
    return trained(model, printed)


def plateau() -> Trained:
    """A schedule and an early stop by the loop's own loss."""
    model = mlp()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    scheduler = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, patience=0, factor=0.5)
    printed = []
    for _ in range(3):
        for x, y, _ in classes():
            optimizer.zero_grad()
            loss = F.cross_entropy(model(x), y)
            loss.backward()
            optimizer.step()
            scheduler.step(loss)
            printed.append(loss.item())
            if loss < 0.7:
                return trained(model, [*printed, optimizer.param_groups[0]["lr"]])
    return trained(model, [*printed, optimizer.param_groups[0]["lr"]])


def gan(*, freezes: bool = False) -> Trained:
    """Two models, two optimizers; one backward goes through both. freezes: the judge meanwhile."""
    torch.manual_seed(1)
    maker = nn.Sequential(nn.Linear(3, 8), nn.Tanh(), nn.Linear(8, WIDTH))
    judge = nn.Sequential(nn.Linear(WIDTH, 8), nn.Tanh(), nn.Linear(8, 1))
    of_maker = torch.optim.SGD(maker.parameters(), lr=0.05)
    of_judge = torch.optim.SGD(judge.parameters(), lr=0.05)
    criterion = nn.BCEWithLogitsLoss()
    printed = []
    for x, _, _ in classes():
        of_judge.zero_grad()
        real = criterion(judge(x), torch.ones(len(x), 1))
        made = maker(x[:, :3])
        fake = criterion(judge(made.detach()), torch.zeros(len(x), 1))
        both = real + fake
        both.backward()
        of_judge.step()
        of_maker.zero_grad()
        judge.requires_grad_(not freezes)
        loss = criterion(judge(made), torch.ones(len(x), 1))
        loss.backward()
        judge.requires_grad_(True)
        of_maker.step()
        printed += [both.item(), loss.item()]
    return trained(maker, printed, judge)


def gan_that_freezes() -> Trained:
    return gan(freezes=True)


def gradient_penalty() -> Trained:
    """A critic whose gradient's norm is held to 1."""
    critic = mlp(1)
    optimizer = torch.optim.SGD(critic.parameters(), lr=0.05)
    printed = []
    for x, _, _ in classes():
        optimizer.zero_grad()
        between = x.clone().requires_grad_()
        out = critic(between)
        (slope,) = torch.autograd.grad(out, between, torch.ones_like(out), create_graph=True)
        loss = out.mean() + 10.0 * (slope.norm(2, dim=1) - 1).square().mean()
        loss.backward()
        optimizer.step()
        printed.append(loss.item())
    return trained(critic, printed)


def learnt_weight() -> Trained:
    """Two losses that parameters weigh (uncertainties)."""
    torch.manual_seed(1)

    class Both(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body = nn.Linear(WIDTH, CLASSES)
            self.spread = nn.Parameter(torch.zeros(2))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.body(x)

    def loss(m: Any, b: Any) -> torch.Tensor:
        out = m(b[0])
        first, second = F.cross_entropy(out, b[1]), out.square().mean()
        return (torch.exp(-m.spread[0]) * first + torch.exp(-m.spread[1]) * second) + m.spread.sum()

    return loop(Both(), loss)


class Uncertain(nn.Module):
    """Two tasks, and how sure of them it is."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.body, self.spread = nn.Linear(WIDTH, CLASSES + 1), nn.Parameter(torch.zeros(2))

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        out = self.body(x)
        return out[:, :CLASSES], out[:, CLASSES]


def stacked_losses() -> Trained:
    """Put into one tensor, weighed there, and added up."""

    def loss(m: nn.Module, b: Any) -> torch.Tensor:
        out = m(b[0])
        losses = torch.stack([F.cross_entropy(out, b[1]), out.square().mean()])
        return (torch.tensor([0.7, 0.3]) * losses).sum()

    return loop(mlp(), loss)


def stacked_learnt_weights() -> Trained:
    """The same, weighed by parameters that learn from each loss's size."""

    def loss(m: Any, b: Any) -> torch.Tensor:
        kinds, number = m(b[0])
        losses = torch.stack([F.cross_entropy(kinds, b[1]), F.mse_loss(number, b[2])])
        return (torch.exp(-m.spread) * losses + m.spread).sum()

    return loop(Uncertain(), loss)


def learnt_weight_of_a_sum() -> Trained:
    def loss(m: Any, b: Any) -> torch.Tensor:
        kinds, number = m(b[0])
        first, second = F.cross_entropy(kinds, b[1]), F.mse_loss(number, b[2])
        weights = torch.exp(-m.spread)
        return weights[0] * (first + 0.1 * second) + weights[1] * second + m.spread.sum()

    return loop(Uncertain(), loss)


def differentiated_by_hand() -> Trained:
    """No backward pass, and a last batch of one sample, of which a rank has none."""
    model, printed = mlp(), []
    data = TensorDataset(numbers(SAMPLES, WIDTH, seed=2), integers(CLASSES, SAMPLES, seed=3))
    for x, y in DataLoader(data, batch_size=9):
        weight = torch.tensor([0.2, 1.0, 3.0, 0.5])
        penalty = sum(p.square().sum() for p in model.parameters())
        loss = F.cross_entropy(model(x), y, weight=weight) + 0.01 * penalty
        slopes = torch.autograd.grad(loss, [*model.parameters()])
        with torch.no_grad():
            for parameter, slope in zip(model.parameters(), slopes, strict=True):
                parameter -= 0.05 * slope
        printed.append(loss.item())
    return trained(model, printed)


def _over_those_that_count(model: nn.Module, batch: Any, kept: torch.Tensor) -> torch.Tensor:
    each = F.cross_entropy(model(batch[0]), batch[1], reduction="none")
    return (each * kept).sum() / kept.sum().item()


def over_a_number_that_is_nothing_here() -> Trained:
    """Of one batch a single row counts, which one rank has."""
    seen = itertools.count()

    def loss(m: nn.Module, b: Any) -> torch.Tensor:
        largest = b[2] >= 0.6  # of the second batch: one of them
        return _over_those_that_count(m, b, largest if next(seen) == 1 else torch.ones(len(b[2])))

    return loop(mlp(), loss)


def differentiated_over_a_number_that_was_alike() -> Trained:
    model = mlp()
    torch.optim.SGD(model.parameters())  # as of scripts that train: their first batch is in parts
    for number, batch in enumerate(classes()):
        kept = (batch[2] > -0.5) if number else torch.ones(len(batch[2]))
        loss = _over_those_that_count(model, batch, kept)
        slopes = torch.autograd.grad(loss, [*model.parameters()])
        with torch.no_grad():
            for parameter, slope in zip(model.parameters(), slopes, strict=True):
                parameter -= 0.05 * slope
    return trained(model, [])


def projected_gradients() -> Trained:
    """Of two losses that pull apart, set for an optimizer."""
    model = mlp()
    parameters = [*model.parameters()]
    optimizer = torch.optim.SGD(parameters, lr=0.05)
    for x, y, _ in classes():
        out = model(x)
        first = torch.autograd.grad(F.cross_entropy(out, y), parameters, retain_graph=True)
        second = torch.autograd.grad(-out.mean(), parameters)
        along = sum((a * b).sum() for a, b in zip(first, second, strict=True))
        size = sum(b.square().sum() for b in second)
        for parameter, a, b in zip(parameters, first, second, strict=True):
            parameter.grad = a + b - min(along, 0.0) / size * b
        optimizer.step()
    return trained(model, [])


def ratio_of_gradients() -> Trained:
    """A loss is weighed by what its gradient is to another's, at the last layer."""
    model = mlp()
    last = model[2].weight

    def loss(m: nn.Module, b: Any) -> torch.Tensor:
        out = m(b[0])
        first, second = F.cross_entropy(out, b[1]), out.square().mean()
        (one,) = torch.autograd.grad(first, last, retain_graph=True)
        (other,) = torch.autograd.grad(second, last, retain_graph=True)
        return first + 0.5 * (one.norm() / other.norm()).detach() * second

    return loop(model, loss)


def whole_batches() -> Trained:
    """No loader: every batch is cut from the data by hand."""
    model, x, y = mlp(), numbers(SAMPLES, WIDTH, seed=2), integers(CLASSES, SAMPLES, seed=3)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    printed = []
    for start in range(0, SAMPLES, BATCH):
        optimizer.zero_grad()
        loss = F.cross_entropy(
            model(x[start : start + BATCH]), y[start : start + BATCH], reduction="sum"
        )
        loss.backward()
        optimizer.step()
        printed.append(loss.item())
    return trained(model, printed)


def contrastive(strategy: Any = None) -> Trained:
    """In-batch negatives: with dream, outputs are gathered first."""
    model = mlp()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    printed = []
    for x, _, _ in classes():
        optimizer.zero_grad()
        first, second = model(x), model(x * 1.1 + 0.1)
        if strategy is not None:
            first = strategy.communicator.all_gather(first)
            second = strategy.communicator.all_gather(second)
        scores = F.normalize(first, dim=1) @ F.normalize(second, dim=1).T / 0.2
        loss = F.cross_entropy(scores, torch.arange(len(scores)))
        loss.backward()
        optimizer.step()
        printed.append(loss.item())
    return trained(model, printed)


def shared(strategy: Any = None) -> Trained:
    """Batches cut by hand, of which each rank takes its rows."""
    model, x, y = mlp(), numbers(SAMPLES, WIDTH, seed=2), integers(CLASSES, SAMPLES, seed=3)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    printed = []
    for start in range(0, SAMPLES, BATCH):
        a, b = x[start : start + BATCH], y[start : start + BATCH]
        if strategy is not None:
            a, b = strategy.share(a, b)
        optimizer.zero_grad()
        loss = F.cross_entropy(model(a), b)
        loss.backward()
        optimizer.step()
        printed.append(loss.item())
    return trained(model, printed)


def weighed(strategy: Any = None) -> Trained:
    """The user says what a loss is a mean over, which its graph does not tell."""
    model = mlp()

    def loss(m: nn.Module, b: Any) -> torch.Tensor:
        mask = (b[2] > 0.3).float()
        each = F.cross_entropy(m(b[0]), b[1], reduction="none")
        value = torch.dot(each, mask) / mask.sum().clamp(min=1e-9)
        return value if strategy is None else strategy.weigh(value, mask.sum())

    return loop(model, loss)


BY_HAND: dict[str, Callable[..., Trained]] = {
    each.__name__: each for each in (contrastive, shared, weighed)
}
"""These are given the strategy, and use it."""


def dice() -> Trained:
    """A quotient of sums."""

    def loss(m: nn.Module, b: Any) -> torch.Tensor:
        p, y = torch.softmax(m(b[0]), 1), F.one_hot(b[1], CLASSES).float()
        return 1 - 2 * (p * y).sum() / (p.sum() + y.sum())

    return loop(mlp(), loss)


def root_of_mean() -> Trained:
    return loop(mlp(1), lambda m, b: F.mse_loss(m(b[0]).squeeze(1), b[2]).sqrt())


def own_negatives() -> Trained:
    return contrastive()


class Sparse(nn.Module):
    """Keeps how far its units are from being active a tenth of the time, over the whole batch."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.body, self.head = nn.Linear(WIDTH, 5), nn.Linear(5, CLASSES)
        self.off = torch.zeros(())

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = self.body(x).sigmoid()
        self.off = (h.mean(0) - 0.1).square().sum()
        return self.head(h)


def active_units() -> Trained:
    model = Sparse()
    return loop(model, lambda m, b: F.cross_entropy(m(b[0]), b[1]) + model.off, classes())


def spread_over_samples() -> Trained:
    return loop(mlp(), lambda m, b: m(b[0]).var(0).mean())


def hardest_half() -> Trained:
    def loss(m: nn.Module, b: Any) -> torch.Tensor:
        each = F.cross_entropy(m(b[0]), b[1], reduction="none")
        return each.topk(max(1, len(each) // 2)).values.mean()

    return loop(mlp(), loss)


def a_row_of_a_fixed_number() -> Trained:
    return loop(mlp(7), lambda m, b: F.cross_entropy(m(b[0])[0], b[1][0]))


def rows_that_meet() -> Trained:
    """Every two of a batch, one after another."""

    def loss(m: nn.Module, b: Any) -> Any:
        pairs = itertools.combinations(m(b[0]), 2)
        return 0.01 * sum((one - other).square().sum() for one, other in pairs)

    return loop(mlp(7), loss, classes(samples=16))


def squares_of_losses() -> Trained:
    def loss(m: nn.Module, b: Any) -> torch.Tensor:
        kinds, number = m(b[0])
        losses = torch.stack([F.cross_entropy(kinds, b[1]), F.mse_loss(number, b[2])])
        return losses.square().sum()

    return loop(Uncertain(), loss)


def one_weight_of_two_counts() -> Trained:
    """What the parameter learns is of a sum whose parts count differently."""

    def loss(m: Any, b: Any) -> torch.Tensor:
        kinds, number = m(b[0])
        first = F.cross_entropy(kinds, b[1], weight=torch.tensor([0.2, 1.0, 3.0, 0.5]))
        return torch.exp(-m.spread[0]) * (first + F.mse_loss(number, b[2])) + m.spread.sum()

    return loop(Uncertain(), loss)


def structures_in_turn() -> Trained:
    """Losses that begin with the same operation, and differ in all that it keeps."""
    turn = itertools.count()

    def loss(model: nn.Module, batch: Any) -> torch.Tensor:
        x, y, _ = batch
        out = model(x)
        fewer = torch.where(y == 1, -100, y)
        kinds = (
            lambda: F.cross_entropy(out, y),
            lambda: F.cross_entropy(out, y, reduction="sum") / 5,
            lambda: F.cross_entropy(out, fewer),
            lambda: F.cross_entropy(out, y, weight=torch.tensor([1.0, 2.0, 0.5, 3.0])),
            lambda: F.mse_loss(out, out.detach().roll(1, 1)),
            lambda: F.mse_loss(out, out.detach().roll(1, 1), reduction="sum") / 7,
            lambda: F.mse_loss(out[:, :2], out[:, 2:].detach()),
            lambda: F.nll_loss(out.log_softmax(1), y),
            lambda: out.mean(),
            lambda: out.mean(1).mean(),
            lambda: out.sum() * 0.01,
        )
        return kinds[next(turn) % len(kinds)]()

    return loop(mlp(), loss, epochs=5)


def over_a_tensor_of_five() -> Trained:
    def loss(m: nn.Module, b: Any) -> torch.Tensor:
        return (m(b[0]).squeeze(1) - b[2]).square().sum() / torch.tensor(5.0)

    return loop(mlp(1), loss)


def from_scratch(loss: Callable[..., torch.Tensor], rate: float, *, by_hand: bool) -> Trained:
    """A regression without a module, as teachers write it. loss: of errors and weights."""
    weight, bias = torch.zeros(WIDTH, requires_grad=True), torch.zeros(1, requires_grad=True)
    optimizer = torch.optim.SGD([weight, bias], lr=rate)
    printed = []
    for x, _, y in itertools.chain(classes(), classes()):
        value = loss(x @ weight + bias - y, weight)
        value.backward(retain_graph=not by_hand)
        if by_hand:
            with torch.no_grad():
                for each in (weight, bias):
                    each -= rate * each.grad
                    each.grad = None
        else:
            optimizer.step()
            optimizer.zero_grad()
        printed.append(value.item())
    return [weight.detach().clone(), bias.detach().clone()], printed


def bare_mean_by_hand() -> Trained:
    return from_scratch(lambda e, _: e.square().mean(), 0.05, by_hand=True)


def bare_sum() -> Trained:
    return from_scratch(lambda e, _: e.square().sum(), 0.005, by_hand=False)


def bare_sum_by_hand() -> Trained:
    return from_scratch(lambda e, _: e.square().sum() / 2, 0.01, by_hand=True)


def bare_penalty() -> Trained:
    return from_scratch(
        lambda e, w: e.square().mean() + 0.1 * w.square().sum(), 0.05, by_hand=False
    )


QUIET: dict[str, Callable[[], Trained]] = {
    each.__name__: each
    for each in (
        masked_mean, label_smoothing, label_smoothing_of_some, over_a_count_and_a_little,
        over_a_full_mask, tokens_over_their_number, stacked_losses,
    )
}  # fmt: skip
"""What these divide by is known: nothing is said of them."""

NOT_UNDERSTOOD: dict[str, tuple[Callable[[], Trained], str]] = {
    "dice": (dice, "DivBackward0"),
    "root_of_mean": (root_of_mean, "SqrtBackward0"),
    "own_negatives": (own_negatives, "MmBackward0"),
    "spread_over_samples": (spread_over_samples, "VarBackward0"),
    "active_units": (active_units, "MeanBackward1"),
    "hardest_half": (hardest_half, "TopkBackward0"),
    "squares_of_losses": (squares_of_losses, "MseLossBackward0"),
    "a_row_of_a_fixed_number": (a_row_of_a_fixed_number, "a loss of one row"),
    "rows_that_meet": (rows_that_meet, "a loss of several rows"),
    "one_weight_of_two_counts": (one_weight_of_two_counts, "MulBackward0"),
}
"""These count as means over samples, and the operation is named."""

SCRIPTS: dict[str, Callable[[], Trained]] = {
    each.__name__: each
    for each in (
        mean, summed, sum_over_batch_size, sum_over_rows, mean_of_means, mean_then_sum,
        over_its_own_length, over_as_many_elements_as_rows,
        class_weights, label_smoothing, label_smoothing_of_some, soft_targets, batchmean,
        masked_mean, boolean_mask, nothing_that_counts,
        nothing_to_add_up, over_a_number_that_is_nothing_here,
        half_a_sum_of_some, sum_of_some_over_their_number,
        over_a_clamped_sum, over_a_count_or_one, over_a_count_or_a_tensor,
        over_a_count_as_a_number, over_a_mask_or_one_as_a_number, a_temperature_by_itself,
        over_a_count_and_a_little, over_a_full_mask,
        tokens_over_their_number, tokens_over_a_number_that_is_alike_at_first,
        over_the_batch_size_as_a_tensor, a_sum_by_a_schedule,
        penalty, penalty_on_sum, penalties_on_chosen_parameters, penalties_on_what_rows_choose,
        two_kinds, tokens, tokens_in_the_model, accumulated, vae, zipped,
        other_inside, read_ahead, line_search, plateau, gan, gan_that_freezes, gradient_penalty,
        learnt_weight,
        stacked_losses, stacked_learnt_weights, learnt_weight_of_a_sum,
        one_sample_at_a_time, one_sample_over_the_batch_size, one_sample_by_weights,
        tokens_of_several_batches,
        differentiated_by_hand, projected_gradients, ratio_of_gradients,
        whole_batches, structures_in_turn,
        bare_mean_by_hand, bare_sum, bare_sum_by_hand, bare_penalty,
    )
}  # fmt: skip
