"""Rows that are mixed within a model, by a number that was read, or by what earlier batches have
left; and models that only look like it."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import loss_scripts
import numpy as np
import torch
import torch.nn.functional as F
from constant_scripts import loop
from loss_scripts import CLASSES, WIDTH, Trained, classes, mlp
from torch import nn
from torch.utils.data import DataLoader, Subset

Mix = Callable[[torch.Tensor], torch.Tensor]


class Mixing(nn.Module):
    """Mixes what its first layer has made."""

    def __init__(self, mix: Mix, wide: int = 6) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.body, self.head, self.mix = nn.Linear(WIDTH, 6), nn.Linear(wide, CLASSES), mix

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.mix(self.body(x).tanh()))


def trained_by(model: nn.Module) -> Trained:
    return loop(model, lambda m, b: F.cross_entropy(m(b[0]), b[1]))


def spread_of_the_batch_within() -> Trained:
    def mix(h: torch.Tensor) -> torch.Tensor:
        return torch.cat([h, h.std(0).mean().expand(len(h), 1)], 1)

    return trained_by(Mixing(mix, 7))


def attention_over_the_batch() -> Trained:
    return trained_by(Mixing(lambda h: (h @ h.T).softmax(1) @ h))


def capacity_of_experts() -> Trained:
    """Those that come first."""

    def mix(h: torch.Tensor) -> torch.Tensor:
        chosen = F.one_hot(h.argmax(1), h.shape[1])
        place = (chosen.cumsum(0) * chosen).sum(1, keepdim=True)
        return h * (place < 3)

    return trained_by(Mixing(mix))


def largest_taken_off_the_graph() -> Trained:
    return trained_by(Mixing(lambda h: h / h.abs().max().detach()))


def targets_less_a_number_that_was_read() -> Trained:
    kept = [0.0]

    def loss(m: nn.Module, b: Any) -> torch.Tensor:
        kept[0] = 0.8 * kept[0] + 0.2 * b[2].mean().item()
        return F.mse_loss(m(b[0]).squeeze(1), b[2] - kept[0])

    return loop(mlp(1), loss)


def margin_that_numpy_takes_of_the_batch() -> Trained:
    """As a soft boundary has it, of which a graph keeps nothing."""
    radius = torch.tensor(0.5)

    def loss(m: nn.Module, b: Any) -> torch.Tensor:
        far = m(b[0]).square().sum(1)
        value = F.relu(far - radius**2).mean()
        radius.data = torch.tensor(float(np.quantile(far.detach().sqrt().numpy(), 0.7)))
        return value

    return loop(mlp(), loss, epochs=4)


def margin_by_a_schedule() -> Trained:
    steps, running = [0.5], [torch.tensor(0.0)]

    def loss(m: nn.Module, b: Any) -> torch.Tensor:
        far = m(b[0]).square().sum(1)
        steps[0] *= 0.9
        value = F.relu(far - steps[0]).mean() + F.relu(far + torch.tensor(steps[0])).mean()
        running[0] = 0.9 * running[0] + 0.1 * value.detach()
        return value

    return loop(mlp(), loss)


def rows_of_earlier_batches() -> Trained:
    memory: list[torch.Tensor] = []

    def loss(m: nn.Module, b: Any) -> torch.Tensor:
        value = F.cross_entropy(m(b[0]), b[1])
        if memory:
            value = value + m(torch.stack(memory[-4:])).square().mean()
        memory.extend(b[0][:2])
        return value

    return loop(mlp(), loss)


def _teacher() -> nn.Module:
    torch.manual_seed(3)
    teacher = nn.Sequential(nn.Linear(WIDTH, 6), nn.BatchNorm1d(6), nn.Linear(6, CLASSES))
    return teacher.requires_grad_(False)


def a_teacher_that_normalises() -> Trained:
    teacher = _teacher()
    return loop(mlp(), lambda m, b: F.mse_loss(m(b[0]), teacher(b[0])))


def a_teacher_of_two_views() -> Trained:
    """Rows that may be of anything: twice as many as the share has."""
    teacher = _teacher()

    def loss(m: nn.Module, b: Any) -> torch.Tensor:
        views = teacher(torch.cat([b[0], 0.5 * b[0]]))
        return F.mse_loss(m(b[0]), views[: len(b[0])])

    return loop(mlp(), loss)


def table_of_each_sample() -> Trained:
    """By what is in it, as the data have no numbers."""
    table = torch.zeros(CLASSES)

    def loss(m: nn.Module, b: Any) -> torch.Tensor:
        each = F.cross_entropy(m(b[0]), b[1], reduction="none")
        table[b[1]] = each.detach()
        return each.mean() + 0.1 * (m(b[0]) * table).mean()

    return loop(mlp(), loss)


def bias_by_a_batch() -> Trained:
    model, seen = mlp(), [False]

    def loss(m: nn.Module, b: Any) -> torch.Tensor:
        if not seen[0]:
            with torch.no_grad():
                [*m.parameters()][-1].copy_(torch.bincount(b[1], minlength=CLASSES).float().log1p())
        seen[0] = True
        return F.cross_entropy(m(b[0]), b[1])

    return loop(model, loss)


def codebook_that_follows_rows(first: int = 0) -> Trained:
    """first: the batch from which on it is used."""
    passes, epochs = 0, 39 if first else 2
    book = torch.linspace(-1, 1, 5 * WIDTH).view(5, WIDTH)

    def loss(m: nn.Module, b: Any) -> torch.Tensor:
        nonlocal book, passes
        passes += 1
        if passes < first:
            return F.cross_entropy(m(b[0]), b[1])
        near = torch.cdist(b[0], book).argmin(1)
        value = F.cross_entropy(m(b[0] + book[near]), b[1])
        hot = F.one_hot(near, 5).float()
        book = 0.8 * book + 0.2 * (hot.T @ b[0]) / (hot.sum(0) + 1.0)[:, None]
        return value

    return loop(mlp(), loss, epochs=epochs)


def state_that_is_carried() -> Trained:
    """From the rows of one batch to those of the next."""
    kept = [torch.zeros(0, CLASSES)]

    def loss(m: nn.Module, b: Any) -> torch.Tensor:
        out = m(b[0])
        if len(kept[0]) == len(b[0]):
            out = out + 0.3 * kept[0]
        kept[0] = out.detach()
        return F.cross_entropy(out, b[1])

    return loop(mlp(), loss)


def experts_that_rows_are_sent_to() -> Trained:
    """And written, each to its place, into a tensor of this batch."""

    def mix(h: torch.Tensor) -> torch.Tensor:
        out = torch.zeros_like(h)
        for expert in range(6):
            at = (h.argmax(1) == expert).nonzero(as_tuple=True)[0]
            out = out.index_add(0, at, h[at] * (expert + 1.0))
        return out

    return trained_by(Mixing(mix))


def each_sample_within() -> Trained:
    """Attention, and a sum over steps of each sample by itself; drops; a table of ones."""

    def mix(h: torch.Tensor) -> torch.Tensor:
        steps = h.reshape(len(h), 3, 2).transpose(1, 2)
        seen = (steps @ steps.transpose(1, 2)).softmax(2) @ steps.cumsum(1)
        hot = torch.zeros(len(h), 6)
        hot[torch.arange(len(h)), h.argmax(1)] = 1.0
        hot.scatter_(1, h.argmin(1, keepdim=True), 1.0)
        heads = steps.contiguous().view(len(h), -1, 3).reshape(len(h), -1)
        return (seen.flatten(1) + heads) * (
            h / h.amax(1, keepdim=True).detach().clamp(0.5)
        ) + 0.5 * hot

    return trained_by(Mixing(mix))


def _augmented(follow: Callable[[torch.Tensor, torch.Tensor], torch.Tensor]) -> Trained:
    """Rows have noise with a probability that changes with each batch."""
    chance = torch.tensor(0.5)

    def loss(m: nn.Module, b: Any) -> torch.Tensor:
        nonlocal chance
        noise = (torch.rand(len(b[0]), 1) < chance).float() * torch.randn(len(b[0]), WIDTH)
        out = m(b[0] + noise)
        chance = (chance + follow(out.detach(), b[1])).clamp(0.0, 1.0)
        return F.cross_entropy(out, b[1])

    return loop(mlp(), loss)


def probability_that_follows_the_outputs() -> Trained:
    return _augmented(lambda out, y: 0.5 * ((out.argmax(1) == y).float().mean() - 0.5))


def probability_by_a_schedule() -> Trained:
    return _augmented(lambda *_: torch.tensor(0.05))


def in_parts(cut: Callable[[torch.Tensor], Any], model: nn.Module | None = None) -> Trained:
    """Each part of a batch has its loss; 7 and 5 rows on two ranks."""

    def loss(m: nn.Module, b: Any) -> torch.Tensor:
        parts = zip(cut(b[0]), cut(b[1]), strict=True)
        return torch.stack([F.cross_entropy(m(x), y) for x, y in parts]).sum()

    return loop(model or mlp(), loss)


def halves() -> Trained:
    def cut(x: torch.Tensor) -> list[torch.Tensor]:
        half = len(x) // 2
        return [x[:half], x[half:]]

    return in_parts(cut)


def halves_by_chunk() -> Trained:
    return in_parts(lambda x: x.chunk(2))


def first_two() -> Trained:
    return in_parts(lambda x: [x[:2], x[2:]])


def more_than_a_share() -> Trained:
    return in_parts(lambda x: [x[:9]])


def as_many_as_a_share() -> Trained:
    return in_parts(lambda x: [x[:7].double().float() if x.is_floating_point() else x[:7]])


def written_by_number() -> Trained:
    def loss(m: nn.Module, b: Any) -> torch.Tensor:
        b[1][9:] = 0
        return F.cross_entropy(m(b[0]), b[1])

    return loop(mlp(), loss)


def one_written_by_number() -> Trained:
    def loss(m: nn.Module, b: Any) -> torch.Tensor:
        b[1][0] = 0
        return F.cross_entropy(m(b[0]), b[1])

    return loop(mlp(), loss)


def doubled_where_they_lie() -> Trained:
    def loss(m: nn.Module, b: Any) -> torch.Tensor:
        b[0].narrow(0, 0, 2).mul_(2.0)
        return F.cross_entropy(m(b[0]), b[1])

    return loop(mlp(), loss)


def every_other() -> Trained:
    return in_parts(lambda x: [x[::2].double().float() if x.is_floating_point() else x[::2]])


def halves_of_outputs() -> Trained:
    def loss(m: nn.Module, b: Any) -> torch.Tensor:
        out, half = m(b[0]), len(b[0]) // 2
        return F.cross_entropy(out[:half], b[1][:half]) + out[half:].square().mean()

    return loop(mlp(), loss)


def first_two_within() -> Trained:
    return trained_by(Mixing(lambda h: torch.cat([h[:2], 2.0 * h[2:]])))


def parts_of_even_shares() -> Trained:
    """Whose rows are those of one device: a part each to an update, and to a loss."""
    model = mlp()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    for x, y, z in DataLoader(Subset(classes(samples=24).dataset, range(24)), batch_size=12):
        some = (x.shape[0], len(x) // 2)
        half = some[1]
        for part, wanted in zip(x.chunk(2), y.chunk(2), strict=True):
            optimizer.zero_grad()
            F.cross_entropy(model(part), wanted).backward()
            optimizer.step()
        optimizer.zero_grad()
        first = F.cross_entropy(model(x[:half]), y[:half])
        (first + 0.3 * (model(x)[half:, 0] - z[half:]).square().mean()).backward()
        optimizer.step()
    return [p.detach().clone() for p in model.parameters()], []


def views_taken_apart() -> Trained:
    """And some rows that are only looked at."""

    def loss(m: nn.Module, b: Any) -> torch.Tensor:
        out, n = m(torch.cat([b[0], 0.5 * b[0]])), len(b[0])
        out[:3].detach().tolist()
        b[0][:2].mean().item()
        one, other = out.chunk(2)
        return F.cross_entropy(out[n:], b[1]) + F.mse_loss(one, other)

    return loop(mlp(), loss)


def risk_by_counts_that_were_read() -> Trained:
    def loss(m: nn.Module, b: Any) -> torch.Tensor:
        known = (b[2] > 0.0).float()
        many = max(1.0, known.sum().item())
        return (known / many * m(b[0]).logsumexp(1)).sum()

    return loop(mlp(), loss)


def padding_left_out_by_its_places() -> Trained:
    """As the places are found among this rank's rows, they are of these."""

    def loss(m: nn.Module, b: Any) -> torch.Tensor:
        wanted = F.one_hot(b[1], CLASSES).float()
        wanted.index_fill_(0, torch.nonzero(b[1] == 0).squeeze(1), 0.0)
        return -(m(b[0]).log_softmax(1) * wanted).sum(1).mean()

    return loop(mlp(), loss)


def rows_written_where_they_are() -> Trained:
    def loss(m: nn.Module, b: Any) -> torch.Tensor:
        x, n = b[0].clone(), len(b[0])
        x[x[:, 0] > 0.5] = 0.0
        x[:, :2] *= 2.0
        x[:n].add_(1.0)
        for row in range(n):
            if b[1][row] == 0:
                x[row] = 0.5
                x[row, 0] = 1.0
        kept = x[:3].detach().clone()
        kept.clamp_(0.0, 1.0)
        return F.cross_entropy(m(x), b[1])

    return loop(mlp(), loss)


def one_added_to_by_number() -> Trained:
    def loss(m: nn.Module, b: Any) -> torch.Tensor:
        b[0][0] += 1.0
        return F.cross_entropy(m(b[0]), b[1])

    return loop(mlp(), loss)


def views_that_lie_by_turns() -> Trained:
    """Written into an empty tensor, and taken apart again."""

    def loss(m: nn.Module, b: Any) -> torch.Tensor:
        both = torch.empty(2 * len(b[0]), *b[0].shape[1:])
        both[::2], both[1::2] = b[0], b[0].flip(-1)
        out = m(both)
        return F.cross_entropy(out[::2], b[1]) + out[1::2].square().mean()

    return loop(mlp(), loss)


def beside(pick: Callable[[torch.Tensor], torch.Tensor]) -> Trained:
    """Each row is held against another one. pick: the numbers of these."""

    def loss(m: nn.Module, b: Any) -> torch.Tensor:
        z = m(b[0])
        near = (z - z[pick(b[0])]).square().sum(1).neg().exp()
        return F.cross_entropy(z, b[1]) + near.mean()

    return loop(mlp(), loss)


def the_next_by_number() -> Trained:
    return beside(lambda x: (torch.arange(len(x)) + 1) % len(x))


def another_by_a_draw() -> Trained:
    return beside(lambda x: torch.randint(0, len(x), (len(x),)))


def weighed_by(weigh: Callable[[torch.Tensor, Any], torch.Tensor]) -> Trained:
    def loss(m: nn.Module, b: Any) -> torch.Tensor:
        each = F.cross_entropy(m(b[0]), b[1], reduction="none")
        return (weigh(each.detach(), b) * each).mean()

    return loop(mlp(), loss)


def means_of_three_beside_one_another() -> Trained:
    return weighed_by(lambda each, _: F.pad(each, (2, 0)).unfold(0, 3, 1).mean(1))


def differences_along_the_batch() -> Trained:
    return weighed_by(lambda each, _: 1.0 + F.pad(torch.diff(each), (1, 0)))


def commonest_class() -> Trained:
    def weigh(_: torch.Tensor, b: Any) -> torch.Tensor:
        some = b[1] % 2
        return torch.where(some == torch.mode(some).values, 0.5, 1.0)

    return weighed_by(weigh)


def distances_mapped_over_rows() -> Trained:
    def weigh(_: torch.Tensor, b: Any) -> torch.Tensor:
        return torch.func.vmap(lambda row: (b[0] - row).norm(dim=1).mean())(b[0])

    return weighed_by(weigh)


def queue_that_is_drawn_from() -> Trained:
    queue = torch.ones(40, WIDTH)

    def loss(m: nn.Module, b: Any) -> torch.Tensor:
        nonlocal queue
        x = b[0]
        old = queue[torch.randint(0, 40, (len(x),))]
        queue = torch.cat([queue, x + 0.1 * m(x).detach()[:, :1]])[-40:]
        return F.cross_entropy(m(x), b[1]) + m(old).square().mean()

    return loop(mlp(), loss)


def places_and_models_that_are_mapped() -> Trained:
    """Numbers of places in each row, and of labels; and a function that is mapped over weights."""
    heads = torch.linspace(-1.0, 1.0, 3 * WIDTH).view(3, WIDTH)

    def loss(m: nn.Module, b: Any) -> torch.Tensor:
        x, n = b[0], len(b[0])
        flat = torch.stack([x, x.flip(1)], 1).flatten(0, 1)
        last = flat[torch.arange(n) * 2 + (b[1] % 2)]
        chosen = m(last).log_softmax(1)[torch.arange(n), b[1]]
        several = torch.func.vmap(lambda head: (x * head).sum(1).sigmoid())(heads).mean(0)
        each = torch.func.vmap(lambda row: row.square().mean())(x)
        return -(chosen * several * each).mean()

    return loop(mlp(), loss)


def laid_end_to_end(items: Any) -> list[torch.Tensor]:
    rows = [F.pad(x[None], (0, 0, 0, 1 + int(y))) for x, y, *_ in items]
    lengths = torch.tensor([len(each) for each in rows])
    return [torch.cat(rows), torch.stack([each[1] for each in items]), lengths]


def means_of_what_lies_end_to_end() -> Trained:
    """Each sample's own, which a list of lengths takes apart."""

    def loss(m: nn.Module, b: Any) -> torch.Tensor:
        out = torch.stack([each.mean(0) for each in m(b[0]).split(b[2].tolist())])
        return F.cross_entropy(out, b[1])

    batches = DataLoader(classes(samples=23).dataset, batch_size=14, collate_fn=laid_end_to_end)
    return loss_scripts.loop(mlp(), loss, batches, epochs=2)


def samples_in_a_list() -> Trained:
    """Of several lengths: some have as many steps as there are samples."""

    def loss(m: nn.Module, b: Any) -> torch.Tensor:
        last = torch.stack([each.cumsum(0).tanh().mean(0) for each in b[0]])
        return F.cross_entropy(m(last), b[1])

    def listed(items: Any) -> list[Any]:
        rows, classes, lengths = laid_end_to_end(items)
        return [[*rows.split(lengths.tolist())], classes]

    batches = DataLoader(classes(samples=23).dataset, batch_size=6, collate_fn=listed)
    return loss_scripts.loop(mlp(), loss, batches, epochs=2)


class Centres(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.net = mlp()
        self.centres = nn.Parameter(torch.linspace(-1.0, 1.0, 3 * CLASSES).view(3, CLASSES))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.net(x)


def distances_to_learned_centres() -> Trained:
    def loss(m: nn.Module, b: Any) -> torch.Tensor:
        near = 1.0 / (1.0 + torch.cdist(m(b[0]), m.centres).square())
        wanted = F.one_hot(b[1] % 3, 3).float()
        return F.kl_div((near / near.sum(1, keepdim=True)).log(), wanted, reduction="batchmean")

    return loop(Centres(), loss)


def twice_a_similarity() -> Trained:
    """A rank has two rows of the last batch, and had more before."""

    def loss(m: nn.Module, b: Any) -> torch.Tensor:
        return (2 - 2 * F.cosine_similarity(m(b[0]), m(b[0].flip(1)))).mean()

    return loop(mlp(), loss, batch=10)


def loads_that_nobody_uses() -> Trained:
    """As many experts as a share has rows."""

    def mix(h: torch.Tensor) -> torch.Tensor:
        chosen = F.one_hot(h.argmax(1), h.shape[1]).float()
        model.load = h.shape[1] * (chosen.mean(0) * h.softmax(1).mean(0)).sum()
        return h

    model = Mixing(mix)
    return loop(model, lambda m, b: F.cross_entropy(m(b[0]), b[1]), batch=12)


def mixed_by_an_order(draw: Callable[[int], Any]) -> Trained:
    """Inputs and labels of each sample with another's. draw: gives an order of so many."""

    def loss(m: nn.Module, b: Any) -> torch.Tensor:
        order = draw(len(b[0]))
        z = m(0.7 * b[0] + 0.3 * b[0][order])
        return 0.7 * F.cross_entropy(z, b[1]) + 0.3 * F.cross_entropy(z, b[1][order])

    return loop(mlp(), loss)


def labels_in_another_order() -> Trained:
    draw = np.random.default_rng(3)

    def loss(m: nn.Module, b: Any) -> torch.Tensor:
        return F.cross_entropy(
            m(b[0]), b[1].index_select(0, torch.from_numpy(draw.permutation(len(b[1]))))
        )

    return loop(mlp(), loss)


def looked_up(mixes: bool) -> Trained:
    """Rows in an order of NumPy's, which are not followed to the model; or mixed with others."""
    draw, table = np.random.default_rng(3), torch.linspace(-1.0, 1.0, 5 * WIDTH).view(5, WIDTH)

    def loss(m: nn.Module, b: Any) -> torch.Tensor:
        order = draw.permutation(len(b[0]))
        seen = F.embedding(b[1] % 5, table) + b[0]
        z = m(
            torch.from_numpy(
                (seen + 0.3 * mixes * seen[order]).numpy()[slice(None) if mixes else order]
            )
        )
        own = F.cross_entropy(z, b[1] if mixes else b[1][order])
        return own + 0.3 * F.cross_entropy(z, b[1][order])

    return loop(mlp(), loss)


def looked_up_in_one_order() -> Trained:
    return looked_up(mixes=False)


def all_in_one_order() -> Trained:
    """Of NumPy's, and of a list; and brought back by the order's inverse."""
    draw = np.random.default_rng(3)

    def loss(m: nn.Module, b: Any) -> torch.Tensor:
        order = draw.permutation(len(b[0]))
        again = [*reversed(range(len(order)))]
        x, y = b[0][order][again], b[1][order][again]
        z = m(x)
        back = z[again][np.argsort(order)]
        own = F.cross_entropy(back, b[1], reduction="none")
        return F.cross_entropy(z.relu() + z, y) + (own * b[0].square().mean(1)).mean()

    return loop(mlp(), loss)


CUT = {
    each.__name__: each
    for each in (
        halves, halves_by_chunk, first_two, every_other, halves_of_outputs, first_two_within,
        more_than_a_share, as_many_as_a_share, written_by_number, one_written_by_number,
        one_added_to_by_number, doubled_where_they_lie, another_by_a_draw,
    )
}  # fmt: skip
MIXED: dict[str, tuple[Callable[[], Trained], str]] = {
    "spread_of_the_batch_within": (spread_of_the_batch_within, "rows, by std"),
    "attention_over_the_batch": (attention_over_the_batch, "rows, by matmul"),
    "capacity_of_experts": (capacity_of_experts, "rows, by cumsum"),
    "largest_taken_off_the_graph": (largest_taken_off_the_graph, "rows, by max"),
    "targets_less_a_number": (targets_less_a_number_that_was_read, "rows, by a number in sub"),
    "margin_of_the_batch": (margin_that_numpy_takes_of_the_batch, "rows, by a number in sub"),
    "rows_of_earlier_batches": (rows_of_earlier_batches, "rows, by stack"),
    "codebook_that_follows": (codebook_that_follows_rows, "rows, by "),
    "codebook_that_begins_late": (partial(codebook_that_follows_rows, 30), "rows, by "),
    "probability_that_follows": (probability_that_follows_the_outputs, "rows, by lt"),
    "risk_by_counts": (risk_by_counts_that_were_read, "rows, by a number in div"),
    "means_of_three": (means_of_three_beside_one_another, "rows, by unfold"),
    "differences_along_the_batch": (differences_along_the_batch, "rows, by diff"),
    "commonest_class": (commonest_class, "rows, by mode"),
    "distances_mapped_over_rows": (distances_mapped_over_rows, "rows, by vmap"),
    "the_next_by_number": (the_next_by_number, "rows, by rows in an order of the script's"),
    "mixed_by_numpys_order": (
        lambda: mixed_by_an_order(np.random.default_rng(3).permutation),
        "rows, by rows in an order of the script's",
    ),
    "mixed_by_drawn_numbers": (
        lambda: mixed_by_an_order(lambda n: torch.rand(n).argsort()),
        "rows, by rows in an order of the script's",
    ),
    "looked_up_and_mixed": (
        lambda: looked_up(mixes=True),
        "rows, by rows in an order of the script's",
    ),
    "labels_in_another_order": (
        labels_in_another_order,
        "rows, by rows in an order of the script's",
    ),
    "queue_that_is_drawn_from": (queue_that_is_drawn_from, "of what earlier batches have left"),
    "a_teacher_of_two_views": (a_teacher_of_two_views, "rows, by batch_norm"),
}
WRITTEN = {"table_of_each_sample": table_of_each_sample, "bias_by_a_batch": bias_by_a_batch}
APART = {
    each.__name__: each
    for each in (
        experts_that_rows_are_sent_to,
        each_sample_within,
        a_teacher_that_normalises,
        probability_by_a_schedule,
        state_that_is_carried,
        margin_by_a_schedule,
        parts_of_even_shares,
        views_taken_apart,
        padding_left_out_by_its_places,
        rows_written_where_they_are,
        views_that_lie_by_turns,
        places_and_models_that_are_mapped,
        means_of_what_lies_end_to_end,
        samples_in_a_list,
        distances_to_learned_centres,
        twice_a_similarity,
        loads_that_nobody_uses,
        all_in_one_order,
        looked_up_in_one_order,
    )
}
