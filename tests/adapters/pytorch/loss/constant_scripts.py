"""Losses whose constants were computed from their batch, and such as only look like them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import loss_scripts
import torch
import torch.nn.functional as F
from loss_scripts import CLASSES, WIDTH, Trained, classes, mlp, numbers
from torch import nn
from torch.nn.utils.rnn import PackedSequence, pack_padded_sequence
from torch.utils.data import DataLoader, TensorDataset


def loop(
    model: nn.Module,
    loss: Callable[[nn.Module, Any], torch.Tensor],
    *,
    batch: int = 14,
    epochs: int = 2,
) -> Trained:
    """Batches of 14 and 9: a deviation takes two rows of a share, and a form four."""
    batches = DataLoader(classes(samples=23).dataset, batch_size=batch)
    return loss_scripts.loop(model, loss, batches, epochs=epochs)


def positive_weight_of_the_batch() -> Trained:
    def loss(m: nn.Module, b: Any) -> torch.Tensor:
        y = (b[2] > 0.0).float()
        weight = (y == 0).sum() / (y == 1).sum().clamp(min=1)
        return F.binary_cross_entropy_with_logits(m(b[0]).squeeze(1), y, pos_weight=weight)

    return loop(mlp(1), loss)


def class_weights_of_the_batch() -> Trained:
    def loss(m: nn.Module, b: Any) -> torch.Tensor:
        weight = 1.0 / (1.0 + torch.bincount(b[1], minlength=CLASSES))
        return F.cross_entropy(m(b[0]), b[1], weight=weight)

    return loop(mlp(), loss)


def normalised(x: torch.Tensor) -> torch.Tensor:
    return (x - x.mean()) / (x.std() + 1e-8)


def normalised_advantages() -> Trained:
    """By NumPy, as are others here: what it does is seen by its outcome alone."""

    def loss(m: nn.Module, b: Any) -> torch.Tensor:
        chosen = m(b[0]).log_softmax(1).gather(1, b[1][:, None]).squeeze(1)
        gain = b[2].numpy()
        return -(chosen * torch.from_numpy((gain - gain.mean()) / (gain.std() + 1e-8))).mean()

    return loop(mlp(), loss)


def clipped_advantages() -> Trained:
    """As PPO has it, with a value's loss and an entropy beside."""

    def loss(m: nn.Module, b: Any) -> torch.Tensor:
        chosen = m(b[0]).log_softmax(1)
        ratio = (chosen - chosen.detach() + 0.1).exp().gather(1, b[1][:, None]).squeeze(1)
        gain = normalised(b[2])
        worst = torch.min(ratio * gain, ratio.clamp(0.8, 1.2) * gain)
        return -worst.mean() - 0.01 * (-(chosen.exp() * chosen).sum(1)).mean()

    return loop(mlp(), loss)


def less_the_mean() -> Trained:
    def loss(m: nn.Module, b: Any) -> torch.Tensor:
        chosen = m(b[0]).log_softmax(1).gather(1, b[1][:, None]).squeeze(1)
        return -(chosen * torch.from_numpy(b[2].numpy() - b[2].numpy().mean())).mean()

    return loop(mlp(), loss, epochs=3)  # a share of four rows thrice, on three ranks too


def normalised_targets() -> Trained:
    return loop(mlp(1), lambda m, b: F.mse_loss(m(b[0]).squeeze(1), normalised(b[2])))


def errors_by_hand() -> Trained:
    def loss(m: nn.Module, b: Any) -> torch.Tensor:
        out, target = m(b[0]), normalised(b[2])
        return (out[:, 0] - target).square().mean() + (target - out[:, 1]).abs().mean()

    return loop(mlp(), loss)


def weights_over_their_sum() -> Trained:
    def loss(m: nn.Module, b: Any) -> torch.Tensor:
        weights = abs(b[2].numpy()) + 0.1
        each = F.cross_entropy(m(b[0]), b[1], reduction="none")
        return (torch.from_numpy(weights / weights.sum()) * each).sum()

    return loop(mlp(), loss)


def weights_over_their_mean() -> Trained:
    def loss(m: nn.Module, b: Any) -> torch.Tensor:
        weights = abs(b[2].numpy()) + 0.1
        each = F.cross_entropy(m(b[0]), b[1], reduction="none")
        return (torch.from_numpy(weights / weights.mean()) * each).mean()

    return loop(mlp(), loss)


def weights_that_sum_to_one() -> Trained:
    def loss(m: nn.Module, b: Any) -> torch.Tensor:
        weights = F.softmax(b[2], 0)
        each = F.cross_entropy(m(b[0]), b[1], reduction="none").unsqueeze(1)
        return (each * weights[:, None]).sum()

    return loop(mlp(), loss)


def balanced_experts() -> Trained:
    def loss(m: nn.Module, b: Any) -> torch.Tensor:
        p = m(b[0]).softmax(1)
        used = F.one_hot(p.argmax(1), CLASSES).float().mean(0)
        return F.cross_entropy(m(b[0]), b[1]) + (used * p.mean(0)).sum() * CLASSES

    return loop(mlp(), loss)


class Mixture(nn.Module):
    """Its loss, and its experts' balance, come from the model."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.head = mlp(), nn.Linear(WIDTH, CLASSES)

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        p = self.head(x).softmax(1)
        used = F.one_hot(p.argmax(1), CLASSES).float().mean(0)
        return F.cross_entropy(self.body(x) * p, y) + 0.1 * (used * p.mean(0)).sum()


def balanced_within() -> Trained:
    torch.manual_seed(1)
    return loop(Mixture(), lambda m, b: m(b[0], b[1]))


def weighed_by_own_losses() -> Trained:
    """Two losses, each over what it is just now."""

    def loss(m: nn.Module, b: Any) -> torch.Tensor:
        out = m(b[0])
        first, second = F.cross_entropy(out, b[1]), out.square().mean()
        return first * second.detach() + second * first.detach()

    return loop(mlp(), loss)


def by_the_inverse_of_a_count() -> Trained:
    def loss(m: nn.Module, b: Any) -> torch.Tensor:
        mask = (b[2] > 0.3).float()
        each = F.cross_entropy(m(b[0]), b[1], reduction="none")
        return (each * mask).sum() * (1.0 / (mask.sum() + 1e-6))

    return loop(mlp(), loss)


def _each(m: nn.Module, b: Any) -> torch.Tensor:
    return F.cross_entropy(m(b[0]), b[1], reduction="none")


def weights_over_their_largest() -> Trained:
    def loss(m: nn.Module, b: Any) -> torch.Tensor:
        weights = b[0].norm(dim=1)
        return (_each(m, b) * weights / weights.max()).mean()

    return loop(mlp(), loss)


def weights_times_a_matrix() -> Trained:
    def loss(m: nn.Module, b: Any) -> torch.Tensor:
        return (m(b[0]).square().T @ F.softmax(b[2], 0)).mean()

    return loop(mlp(), loss)


def ranks_of_targets() -> Trained:
    def loss(m: nn.Module, b: Any) -> torch.Tensor:
        order = b[2].argsort().argsort().float()
        return F.mse_loss(m(b[0]).squeeze(1), order.flip(0).flip(0) / len(order))

    return loop(mlp(1), loss)


def samples_above_the_median() -> Trained:
    def loss(m: nn.Module, b: Any) -> torch.Tensor:
        each = _each(m, b)
        return each[each > each.median()].mean()

    return loop(mlp(), loss)


def distances_to_centroids() -> Trained:
    def loss(m: nn.Module, b: Any) -> torch.Tensor:
        out, kind = m(b[0]), b[1] % 2
        centres = torch.stack([out[kind == each].mean(0) for each in range(2)])
        return (out - centres[kind]).square().mean() + F.cross_entropy(out, b[1])

    return loop(mlp(), loss, batch=24)


def inputs_less_their_mean() -> Trained:
    def loss(m: nn.Module, b: Any) -> torch.Tensor:
        return F.cross_entropy(m((b[0] - b[0].mean(0)) / b[0].std(0)), b[1])

    return loop(mlp(), loss)


def clamped_at_a_quantile() -> Trained:
    def loss(m: nn.Module, b: Any) -> torch.Tensor:
        each = _each(m, b)
        return each.clamp(max=float(each.detach().quantile(0.8))).mean()

    return loop(mlp(), loss)


COUPLED: dict[str, tuple[Callable[[], Trained], str]] = {
    "positive_weight_of_the_batch": (positive_weight_of_the_batch, "differs over the ranks"),
    "class_weights_of_the_batch": (class_weights_of_the_batch, "differs over the ranks"),
    "normalised_advantages": (normalised_advantages, "a mean of 0 and a deviation of 1"),
    "clipped_advantages": (clipped_advantages, "rows, by mean"),
    "less_the_mean": (less_the_mean, "has a mean of 0 over"),
    "normalised_targets": (normalised_targets, "rows, by mean"),
    "errors_by_hand": (errors_by_hand, "rows, by mean"),
    "weights_over_their_sum": (weights_over_their_sum, "a sum of 1"),
    "weights_that_sum_to_one": (weights_that_sum_to_one, "rows, by softmax"),
    "weights_over_their_mean": (weights_over_their_mean, "a mean of 1"),
    "balanced_experts": (balanced_experts, "differs over the ranks"),
    "balanced_within": (balanced_within, "differs over the ranks"),
    "weighed_by_own_losses": (weighed_by_own_losses, "differs over the ranks"),
    "weights_over_their_largest": (weights_over_their_largest, "rows, by max"),
    "weights_times_a_matrix": (weights_times_a_matrix, "rows, by softmax"),
    "ranks_of_targets": (ranks_of_targets, "rows, by argsort"),
    "samples_above_the_median": (samples_above_the_median, "rows, by median"),
    "distances_to_centroids": (distances_to_centroids, "of all of a share's rows, by"),
    "inputs_less_their_mean": (inputs_less_their_mean, "rows, by mean"),
    "clamped_at_a_quantile": (clamped_at_a_quantile, "differs over the ranks"),
    "by_the_inverse_of_a_count": (by_the_inverse_of_a_count, "differs over the ranks"),
}
"""And what is said of the constant."""


def signs_and_fixed_weights() -> Trained:
    """Weights of classes and of losses, labels of -1 and 1, smoothed and soft ones."""
    weight = torch.tensor([0.2, 1.0, 3.0, 0.5])

    def loss(m: nn.Module, b: Any) -> torch.Tensor:
        out = m(b[0])
        signs = torch.where(b[2] > 0, 1.0, -1.0)
        hinge = (1.0 - out[:, 0] * signs).relu().mean()
        smooth = F.cross_entropy(out, b[1], weight=weight, label_smoothing=0.1)
        soft = F.cross_entropy(out, b[0][:, :CLASSES].softmax(1))
        return 0.3 * hinge + smooth + torch.tensor(0.7) * soft

    return loop(mlp(), loss)


def one_hot_and_binary_targets() -> Trained:
    def loss(m: nn.Module, b: Any) -> torch.Tensor:
        out, hot = m(b[0]), F.one_hot(b[1], CLASSES).float()
        few = (b[2] > 0.8).float()
        of_few = F.binary_cross_entropy_with_logits(out[:, 0], few, pos_weight=torch.tensor(3.0))
        return F.mse_loss(out, hot) + of_few + F.binary_cross_entropy(out.sigmoid(), hot)

    return loop(mlp(), loss)


def given_weights() -> Trained:
    """Importance sampling's, which come with the data, and one of a length of its own."""

    def loss(m: nn.Module, b: Any) -> torch.Tensor:
        each = F.cross_entropy(m(b[0]), b[1], reduction="none")
        return (each * b[2].sigmoid()).mean() + (each / (b[1] + 1)).mean()

    return loop(mlp(), loss)


def ratios_near_one() -> Trained:
    def loss(m: nn.Module, b: Any) -> torch.Tensor:
        logs = m(b[0]).log_softmax(1).gather(1, b[1][:, None]).squeeze(1)
        old = logs.detach() + 1e-6 * b[2]
        return -((logs.detach() - old).exp() * logs).mean()

    return loop(mlp(), loss)


def standard_targets() -> Trained:
    """By the data's own statistics; and of each sample by itself, as a normalised layer gives."""

    def loss(m: nn.Module, b: Any) -> torch.Tensor:
        out = m(b[0])
        own = F.layer_norm(b[0][:, :CLASSES], (CLASSES,), eps=0.0)
        return F.mse_loss(out[:, 0], (b[2] - 0.03) / 1.02) + F.mse_loss(out, own)

    return loop(mlp(), loss)


def each_sample_by_itself() -> Trained:
    """Weights that have a mean of 1 in every sample, and masks."""

    def loss(m: nn.Module, b: Any) -> torch.Tensor:
        given = b[0][:, :CLASSES].exp()
        return (m(b[0]).square() * given / given.mean(1, keepdim=True)).mean()

    return loop(mlp(), loss)


def errors_of_signs_by_hand() -> Trained:
    def loss(m: nn.Module, b: Any) -> torch.Tensor:
        out, signs = m(b[0]), torch.where(b[2] > 0, 1.0, -1.0)
        errors = (out - F.one_hot(b[1], CLASSES)) ** 2
        return (out[:, -1] - signs).abs().mean() + errors.mean() + (b[2] - out[:, 1]).pow(2).mean()

    return loop(mlp(), loss)


def masks_and_counts() -> Trained:
    def loss(m: nn.Module, b: Any) -> torch.Tensor:
        mask, few = (b[2] > 0.3).float(), b[2] > 0.0
        each = F.cross_entropy(m(b[0]), b[1], reduction="none")
        value = (each * mask).sum() / mask.sum().clamp(min=1.0)
        return value + (each[few] * b[2][few]).sum() / len(b[0]) + (each * mask).mean()

    return loop(mlp(), loss)


class Steps(nn.Module):
    """Time comes before the samples, as recurrent layers have it; and some is dropped."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.body, self.head = nn.GRU(1, 5), nn.Linear(5, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(F.dropout(self.body(x.T[:, :, None])[0], 0.2, self.training)).squeeze(2)


def time_first() -> Trained:
    def loss(m: nn.Module, b: Any) -> torch.Tensor:
        error = (m(b[0]) - b[0].T).square()
        late = torch.linspace(0.1, 1.0, WIDTH)[:, None]
        return (error * late * b[2].sigmoid()).mean() + (error * (b[0].T > 0)).mean()

    return loop(Steps(), loss)


def rows_in_another_order() -> Trained:
    """Sorted, joined, chosen, and looked at; what is counted is what the loss is divided by."""

    def loss(m: nn.Module, b: Any) -> torch.Tensor:
        out, target = m(b[0]), b[0][:, :CLASSES]
        order = b[2].sort(descending=True)[1]
        both = F.smooth_l1_loss(torch.cat([out, 0.5 * out]), torch.cat([target, target.exp()]))
        few = b[2] > -0.5
        own = (target - target.mean(1, keepdim=True)) / target.std(1, keepdim=True)
        right = (out.argmax(1) == b[1]).float().mean()
        assert right >= 0.0
        return F.mse_loss(out[order], target[order]) + both + F.mse_loss(out, own) + (
            (out.square().mean(1) * few / few.sum()).sum()
        )  # fmt: skip

    return loop(mlp(), loss)


def masks_up_to_the_longest() -> Trained:
    def loss(m: nn.Module, b: Any) -> torch.Tensor:
        lengths = b[1] + 1
        longest = lengths.max()
        mask = torch.arange(longest)[None] < lengths[:, None]
        return (m(b[0])[:, : int(longest)].square() * mask).sum() / mask.sum()

    return loop(mlp(), loss)


class Packed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.body, self.head = nn.GRU(1, 5), nn.Linear(5, CLASSES)

    def forward(self, x: PackedSequence) -> torch.Tensor:
        return self.head(self.body(x)[1][0])


def packed_by_the_loop() -> Trained:
    def loss(m: nn.Module, b: Any) -> torch.Tensor:
        packed = pack_padded_sequence(
            b[0][:, :, None], b[1] + 1, batch_first=True, enforce_sorted=False
        )
        return F.cross_entropy(m(packed), b[1])

    return loop(Packed(), loss)


def two_losses_in_turn() -> Trained:
    """A mean, and a weighed one: the same things happen on all ranks."""
    model = mlp()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    data = TensorDataset(numbers(37, WIDTH, seed=2), numbers(37, CLASSES, seed=3))
    for index, (x, y) in enumerate(DataLoader(data, batch_size=8)):
        optimizer.zero_grad()
        out = model(x)
        loss = F.mse_loss(out, y) if index % 2 else (out * y.sigmoid()).sum(1).mean() * 0.5
        (loss + 0.01 * sum(p.square().sum() for p in model.parameters())).backward()
        optimizer.step()
    return [p.detach().clone() for p in model.parameters()], []


def quadratic_penalties() -> Trained:
    """Which couple parameters with each other, and no samples."""
    form = torch.eye(9) + 0.1

    def loss(m: Any, b: Any) -> torch.Tensor:
        w, bias = m[0].weight, m[0].bias
        far = bias @ form @ bias + (w.T @ form @ w).trace() + torch.vdot(bias, bias)
        far = far + bias.dot(torch.arange(9.0)) + w.abs().median() + (w[0] * b[0]).square().mean()
        far = far + F.normalize(w).sum().square() + torch.einsum("ij,kj->ik", w, w).norm()
        return F.cross_entropy(m(b[0]), b[1]) + 0.01 * far

    return loop(mlp(), loss)


def numbers_that_are_made_anew() -> Trained:
    """Some of which lie where the ones before them lay."""

    def loss(m: nn.Module, b: Any) -> torch.Tensor:
        out = m(b[0])
        for each in range(8):
            out = out + torch.tensor(0.1 * (each + 1))
        return F.cross_entropy(out, b[1])

    return loop(mlp(), loss, batch=8, epochs=16)


INNOCENT: dict[str, Callable[[], Trained]] = {
    each.__name__: each
    for each in (
        signs_and_fixed_weights, one_hot_and_binary_targets, given_weights, ratios_near_one,
        standard_targets, each_sample_by_itself, errors_of_signs_by_hand, masks_and_counts,
        time_first, rows_in_another_order, masks_up_to_the_longest, packed_by_the_loop,
        two_losses_in_turn, quadratic_penalties, numbers_that_are_made_anew,
    )
}  # fmt: skip
"""Nothing is said of these."""
