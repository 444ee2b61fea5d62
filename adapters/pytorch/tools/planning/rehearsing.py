"""A step under a strategy that splits the model, by the strategy's own code, without values.

What is foretold so cannot differ from what the strategy does: which layers are cut and where, what
is gathered and for how long, which collectives are called with how much.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from typing import Any, final

import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.distributed.tensor import DTensor
from torch.utils._pytree import tree_leaves, tree_map

from dream._mesh import Mesh
from dream.adapters.pytorch.tools.planning import optimizing
from dream.adapters.pytorch.tools.planning.example import Example, example
from dream.adapters.pytorch.tools.planning.ledger import Ledger
from dream.adapters.pytorch.tools.planning.make_believe import world
from dream.adapters.pytorch.tools.planning.on_trust import on_trust
from dream.adapters.pytorch.tools.planning.peaks import most_since
from dream.adapters.pytorch.tools.planning.splitting import Steps, steps_of
from dream.tools.plan.asked import Training
from dream.tools.plan.candidates import Candidate
from dream.tools.plan.sketch import Phase, Rehearsal, Sending

_STEPS = 2
"""The first one makes the optimizer's state, and what is kept from step to step."""
_TWINS = 2
"""However many copies there are, a rank calls the same with as much."""


def rehearse(
    build: Callable[[], Any], training: Training, candidate: Candidate, batch: int
) -> list[Rehearsal]:
    """Of rank 0, which has the largest parts; of a pipeline the ranks that differ most."""
    mesh = Mesh(min(candidate.mesh.data, _TWINS), candidate.mesh.model)
    return [
        _Rehearsal(build, training, candidate, batch).run(mesh, rank) for rank in _ranks(candidate)
    ]


def _ranks(candidate: Candidate) -> list[int]:
    """The first stage of a pipeline keeps most microbatches, the last one has the outputs."""
    last = candidate.mesh.model - 1
    return [0] if candidate.kind != "pipeline" else sorted({0, 1, last})


@final
class _Rehearsal:
    def __init__(
        self, build: Callable[[], Any], training: Training, candidate: Candidate, batch: int
    ) -> None:
        self._build, self._training = build, training
        self._candidate, self._batch = candidate, batch
        self._ledger = Ledger()

    def run(self, mesh: Mesh, rank: int) -> Rehearsal:
        ledger = self._ledger
        fake = FakeTensorMode(allow_non_fake_inputs=True)
        with world(mesh, rank) as here, on_trust(), fake, ledger:
            found = example(self._build())
            model = optimizing.cast(found.model, self._training.precision).train()
            batch, loss = self._samples(found), found.loss
            del found
            steps = steps_of(self._candidate, here, model, loss, self._optimizer, self._mark, batch)
            for _ in range(_STEPS):
                begun = len(ledger.events), len(ledger.done), len(ledger.sent)
                with optimizing.computing(self._training.precision):
                    steps.step()
            return self._result(steps, mesh, rank, begun)

    def _samples(self, found: Example) -> tuple[Any, ...]:
        precision = self._training.precision
        batch: tuple[Any, ...] = tree_map(
            lambda x: optimizing.cast_batch(x, precision) if isinstance(x, torch.Tensor) else x,
            found.batch_of(self._batch),
        )
        return batch if len(batch) > 1 else (*batch, *batch)

    def _mark(self, phase: Phase) -> None:
        self._ledger.phase = phase

    def _optimizer(self, parameters: Iterable[nn.Parameter]) -> torch.optim.Optimizer:
        training = self._training
        plain = self._candidate.kind == "pipeline"  # torch takes parts of tensors one by one
        made = optimizing.optimizer(training.optimizer, parameters, fused=training.fused and plain)
        made.register_step_pre_hook(lambda *_: self._mark("update"))
        made.register_step_post_hook(lambda *_: self._mark("forward"))
        return made

    def _result(
        self, steps: Steps, mesh: Mesh, rank: int, begun: tuple[int, int, int]
    ) -> Rehearsal:
        ledger = self._ledger
        parameters = [*steps.parameters, *steps.buffers]
        gradients = [p.grad for p in steps.parameters if p.grad is not None]
        states = tree_leaves(list(steps.optimizer.state.values()))
        held = {kind: self._numbers(tensors) for kind, tensors in
                (("own", parameters), ("gradients", gradients), ("state", states))}  # fmt: skip
        size = {kind: sum(ledger.made[n] for n in found) for kind, found in held.items()}
        peak, there = most_since(ledger, begun[0])
        known = sum(ledger.made[n] for found in held.values() for n in found if n in there)
        return Rehearsal(
            rank % mesh.model, size["own"], size["gradients"], size["state"], peak - known, peak,
            tuple(ledger.done[begun[1]:]), _sent(ledger, mesh, begun[2]),
            max(ledger.made, default=0),
        )  # fmt: skip

    def _numbers(self, tensors: list[Any]) -> set[int]:
        """Of the storages of this rank's parts."""
        local = [x.to_local() if isinstance(x, DTensor) else x for x in tensors]
        plain = [x for x in local if isinstance(x, torch.Tensor) and not x.is_meta]
        return {number for x in plain if (number := self._ledger.number(x)) >= 0}


def _sent(ledger: Ledger, mesh: Mesh, begin: int) -> tuple[Sending, ...]:
    found = Counter(
        (one.operation, one.size, _axis(mesh, one.ranks), one.phase) for one in ledger.sent[begin:]
    )
    return tuple(
        Sending(operation, size, "data" if axis else "model", phase, count)
        for (operation, size, axis, phase), count in found.items()
    )


def _axis(mesh: Mesh, ranks: tuple[int, ...]) -> bool:
    """Whether ranks lie along the data axis."""
    return mesh.data > 1 and len(ranks) > 1 and ranks[1] - ranks[0] == mesh.model
