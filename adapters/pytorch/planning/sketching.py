"""A torch model without values, and its training step."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from math import gcd
from typing import Any, final

import torch
from torch._subclasses.fake_tensor import (
    DataDependentOutputException,
    DynamicOutputShapeException,
    FakeTensorMode,
)
from torch.utils._pytree import tree_leaves, tree_map

from dream._errors import ConfigurationError
from dream.adapters.pytorch import buffers
from dream.adapters.pytorch.planning import optimizing
from dream.adapters.pytorch.planning.calls import Call, Calls, size, units
from dream.adapters.pytorch.planning.cutting import Block, blocks
from dream.adapters.pytorch.planning.example import Example, example
from dream.adapters.pytorch.planning.ledger import Ledger
from dream.adapters.pytorch.planning.peaks import peaks
from dream.plan.asked import Training
from dream.plan.sketch import WHOLE, Cut, Layer, Op, Parameter, Sketch, Sketcher, Told


def made(build: Callable[[], Any], training: Training) -> TorchSketcher:
    """The model that `build` gives, its tensors without memory."""
    mode = FakeTensorMode(allow_non_fake_inputs=True)
    with mode, _explained():
        found = example(build())
        optimizing.cast(found.model, training.precision)
    return TorchSketcher(found, mode, training)


@final
class TorchSketcher(Sketcher):
    def __init__(self, found: Example, mode: FakeTensorMode, training: Training) -> None:
        self._example, self._mode, self._training = found, mode, training
        self._units = units(found.model)

    def told(self) -> Told:
        return Told("torch", "torch", self._example.samples, self._example.named)

    def sketch(self, batch: int) -> Sketch:
        with self._mode, _explained():
            return self._sketch(batch)

    def _sketch(self, batch: int) -> Sketch:
        model = self._example.model.train()
        precision = self._training.precision
        *inputs, target = tree_map(
            lambda x: optimizing.cast_batch(x, precision) if isinstance(x, torch.Tensor) else x,
            self._example.batch_of(batch),
        )
        if not inputs:
            inputs = [target]
        model.zero_grad(set_to_none=True)
        trained = [p for p in model.parameters() if p.requires_grad]
        optimizer = optimizing.optimizer(
            self._training.optimizer, trained, fused=self._training.fused
        )
        calls = Calls(model, lambda: len(ledger.done))
        ledger = Ledger(calls.owner)
        given = [x for x in tree_leaves((inputs, target)) if isinstance(x, torch.Tensor)]
        ledger.ignore([*model.parameters(), *model.buffers(), *given])
        with ledger:
            with calls.noted(), optimizing.computing(precision):
                output = model(*inputs)
            with optimizing.computing(precision):
                value = self._example.loss(output, target)
            held = ledger.alive()
            ledger.phase = "backward"
            value.backward()
            ledger.phase = "update"
            optimizer.step()
        gradients = {ledger.number(p.grad) for p in trained if p.grad is not None}
        states = [x for x in tree_leaves(list(optimizer.state.values())) if _is_tensor(x)]
        found = peaks(ledger, gradients, {ledger.number(x) for x in states})
        fed = sum(map(size, given))
        divided = [
            replace(block, size=gcd(block.size, _heads(ledger, block) or block.size))
            for block in blocks(calls.made, self._units)
        ]
        return Sketch(
            batch=batch,
            parameters=self._parameters(calls.made, divided),
            layers=self._layers(ledger, calls.made, held),
            units=self._boundaries(calls.made),
            cuts=tuple(_cut(block, ledger, held) for block in divided),
            ops=self._ops(ledger, divided),
            buffers=sum(size(x) for x in _distinct(model.buffers())),
            running=sum(size(x) for x in buffers.running(buffers.norms(model))),
            state=sum(size(x) for x in _distinct(states)),
            inputs=fed,
            saved=sum(ledger.made[number].size for number in held),
            forward_peak=fed + found.forward,
            backward_peak=fed + found.backward,
            joint_peak=fed + found.joint,
            update_peak=fed + found.update,
            left=fed + found.left,
        )

    def _parameters(self, calls: list[Call], divided: list[Block]) -> tuple[Parameter, ...]:
        called = {call.name for call in calls}
        cuts = {name: at for at, block in enumerate(divided) for name in block.parameters}
        return tuple(
            Parameter(
                name=name,
                layer=_called(name, called),
                elements=p.numel(),
                rows=len(p) if p.dim() else 1,
                itemsize=p.element_size(),
                trained=p.requires_grad,
                cut=cuts.get(name, WHOLE),
            )
            for name, p in self._example.model.named_parameters()
        )

    def _layers(self, ledger: Ledger, calls: list[Call], held: set[int]) -> tuple[Layer, ...]:
        saved: dict[str, int] = {}
        for number in held:
            made = ledger.made[number]
            saved[made.owner] = saved.get(made.owner, 0) + made.size
        modules = {call.name: type(call.module).__name__ for call in calls}
        unit = self._unit_by_owner(ledger)
        return tuple(
            Layer(name, modules.get(name, ""), unit.get(name, ""), saved.get(name, 0))
            for name in dict.fromkeys([*modules, *saved])
        )

    def _boundaries(self, calls: list[Call]) -> Mapping[str, int]:
        """What goes out of each unit: its own output, or that of what was called last in it."""
        found: dict[str, int] = {}
        whole: set[str] = set()
        for call in calls:
            unit = self._units[call.name]
            if unit and unit not in whole:
                found[unit] = call.gave
            if call.name == unit:
                whole.add(unit)
        return found

    def _unit_by_owner(self, ledger: Ledger) -> dict[str, str]:
        found = zip(ledger.done, self._in(ledger), strict=True)
        return {done.owner: unit for done, unit in found if unit}

    def _in(self, ledger: Ledger) -> list[str]:
        """The unit of each operation in forward, "" for others; one in none of them belongs to the
        unit before it."""
        last = next((u for d in ledger.done if (u := self._units[d.owner])), "")
        found = []
        for done in ledger.done:
            last = self._units[done.owner] or last
            found.append(last if done.phase == "forward" else "")
        return found

    def _ops(self, ledger: Ledger, divided: list[Block]) -> tuple[Op, ...]:
        forward = [d.phase for d in ledger.done].count("forward")
        within = [WHOLE] * len(ledger.done)
        for at, block in enumerate(divided):
            for place in range(block.start, min(block.stop + 1, forward)):
                within[place] = at
        return tuple(
            Op(done.phase, done.kind, done.flops, done.moved, unit, cut)
            for done, unit, cut in zip(ledger.done, self._in(ledger), within, strict=True)
        )


def _heads(ledger: Ledger, block: Block) -> int:
    """Into how many attention within the block is split; 0 where there is none."""
    return max((done.heads for done in ledger.done[block.start : block.stop]), default=0)


def _cut(block: Block, ledger: Ledger, held: set[int]) -> Cut:
    """What the last operation makes is whole on every part."""
    within = (ledger.made[number] for number in held)
    saved = sum(made.size for made in within if block.start <= made.at - 1 < block.stop)
    return Cut(block.size, saved, block.forward, block.backward)


def _called(name: str, called: set[str]) -> str:
    """The innermost module around a parameter that was called."""
    owner = name.rpartition(".")[0]
    while owner and owner not in called:
        owner = owner.rpartition(".")[0]
    return owner


def _distinct(tensors: Any) -> list[torch.Tensor]:
    return list({x.untyped_storage()._cdata: x for x in tensors}.values())


def _is_tensor(x: object) -> bool:
    return isinstance(x, torch.Tensor)


@contextmanager
def _explained() -> Iterator[None]:
    """Errors of what needs values, in words."""
    try:
        yield
    except (DataDependentOutputException, DynamicOutputShapeException) as error:
        raise ConfigurationError(
            "The model is built and run without values, and something asked for one. "
            f"Received: {error}. Leave out .item(), .tolist(), masks as indices and prints of "
            "tensors in the function, the model's forward and the loss."
        ) from error
