"""What a loop does by the number of its batch's rows is found in its text, and what it only logs or
takes for a size is not."""

from __future__ import annotations

import ast
from textwrap import indent

import pytest

from dream.adapters.pytorch.loss.lengths.own_lengths import _value_of
from dream.adapters.pytorch.loss.lengths.uses import LengthUses

NUMBERS = {"net": object(), "size": 8, "base": 0.1, "every": 10, "total": 0.0, "seen": 0, "n": 4}

GO_BY_IT = {
    "p.grad.div_(len(x))": "len(x)",
    "p.grad /= x.size(0)": "x.size(0)",
    "p.grad += torch.randn_like(p) / x.shape[0]": "x.shape[0]",
    "n = len(x)\np.grad = p.grad / n": "len(x)",
    "n, c = x.shape\nscale = 1 / n\np.grad.mul_(scale)": "n",
    "with torch.no_grad():\n    for p in net.parameters():\n        p -= base * len(x) * p.grad": (
        "len(x)"
    ),
    "torch._foreach_div_(grads, len(x))": "len(x)",
    "torch.nn.utils.clip_grad_norm_(net.parameters(), base * len(x))": "len(x)",
    "opt.param_groups[0]['lr'] = base * len(x) / 8": "len(x)",
    "seen += len(x)\nif seen > 9:\n    for g in opt.param_groups:\n        g['lr'] *= 0.5": "seen",
    "seen = seen + len(x)\nif seen > every:\n    break": "seen",
    "self.seen += x.size(0)\nif self.seen % 10 == 0:\n    schedule.step()": "self.seen",
    "seen += len(x)\nloss = a + (1.0 if seen > 9 else 0.0) * b": "seen",
    "seen += len(x)\nbeta = min(1.0, seen / 1000)\nloss = a + beta * b": "seen",
    "seen += len(x)\nloss = smooth(out, amount=seen / 1000)": "seen",
    "seen += len(x)\nlr = base * (1 - seen / 53)\nfor g in opt.param_groups:\n    g['lr'] = lr": (
        "seen"
    ),
    "waits += len(x)\nif waits >= 16:\n    opt.step()\n    waits = 0": "waits",
    "if norm * len(x) > 2:\n    opt.step()": "len(x)",
    "if len(x) < size:\n    continue": "len(x)",
    "n = x.size(0)\nif n != size:\n    break": "x.size(0)",
}
DO_NOT = (
    "total += loss.item() * x.size(0)",
    "seen += len(x)\nmean = total / seen\nlogs.append(mean)",
    "seen += len(x)\nif total / seen < best:\n    opt.step()",
    "seen += len(x)\nif seen >= every:\n    print(total / seen)\n    every += 10",
    "n = len(x)\nloss = each.sum() / n",
    "loss = (each.sum() / len(x)).mean()",
    "loss = loss.view(x.size(0), -1).mean()",
    "noise = torch.randn(len(x), 6)\nloss = a * noise.mean()",
    "print(f'{i * len(x)} of {len(data)}')",
    "bar.update(len(x))",
    "schedule.step(total / len(data))",
    "if len(x) == 0:\n    continue",
    "if len(x) < 2:\n    continue",
    "if i % every == 0:\n    print(i * len(x))\n    break",
    "delta = delta + 0.1 * x.grad.view(len(x), -1).norm(dim=1)",
    "x.data += x.grad * len(x)",
    "g = torch.autograd.grad(loss, net) * len(x)",
    "seen += len(x) * world_size\nif seen > every:\n    break",
    "n = int(strategy.communicator.all_reduce(torch.tensor(len(x))))\np.grad.div_(n)",
    "p.grad.div_(int(strategy.communicator.all_reduce(torch.tensor(len(x)))))",
    "p.grad.div_(strategy.communicator.all_reduce(len(x)) if strategy else len(x))",
    "n = len(x)\nif strategy:\n    n = dist.all_reduce(n)\np.grad.div_(n)",
    "seen += size\nif seen > every:\n    break",
    "for x, y in test:\n    seen += len(x)\n    if seen > every:\n        break",
    "for x in test:\n    n = len(x)\n    if n < size:\n        break",
)


def found(body: str) -> list[str]:
    """What goes by a length, where a loop over batches has gone backward."""
    loop = "def train():\n    for x, y in loader:\n        loss.backward()\n"
    tree = ast.parse(loop + indent(body, " " * 8))
    uses = LengthUses(
        tree, 3, lambda e: ast.unparse(e) in ("x", "y"), lambda e: _value_of(e, NUMBERS, {}), (4, 8)
    )
    return [use.of for use in uses.find()]


@pytest.mark.parametrize("body", GO_BY_IT)
def test_what_trains_by_a_length_is_found(body: str) -> None:
    assert {*found(body)} == {GO_BY_IT[body]}


@pytest.mark.parametrize("body", DO_NOT)
def test_sizes_averages_and_logs_are_not(body: str) -> None:
    assert found(body) == []
