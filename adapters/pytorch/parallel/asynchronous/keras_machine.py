"""Keras on torch: its way with parameters end to end, in eager tensors."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, final

import keras
import numpy as np
import torch
from numpy.typing import NDArray

from dream.adapters.keras import private
from dream.adapters.keras.asynchronous.machine import Local, Machine
from dream.adapters.pytorch.devices import offset_by


@final
class TorchMachine(Machine):
    """One device."""

    def update(self, optimizer: Any, variables: Sequence[Any]) -> Callable[[Any, bytes], Any]:
        @torch.no_grad()
        def apply(gradient: Any, present: bytes) -> Any:
            parts = _parts(gradient, variables)
            there = [
                (part, variable)
                for index, (part, variable) in enumerate(zip(parts, variables, strict=True))
                if not present or present[index]
            ]
            if there:
                type(optimizer).apply(optimizer, *zip(*there, strict=True))
            else:
                private.counter(optimizer).assign_add(1)
            return self.flat(variables)

        return apply

    def load(self, variables: Sequence[Any], counter: Any) -> Callable[[Any, int], None]:
        @torch.no_grad()
        def assign(flat: Any, count: int) -> None:
            for variable, part in zip(variables, _parts(flat, variables), strict=True):
                variable.assign(part)
            counter.assign(count)

        return assign

    def flat(self, variables: Sequence[Any]) -> NDArray[Any]:
        with torch.no_grad():
            joined = torch.cat([v.value.detach().reshape(-1) for v in variables])
        return joined.cpu().numpy()

    def differentiate(
        self, local: Local, variables: Sequence[Any], *, eager: bool, one_length: bool
    ) -> Callable[[tuple[Any, ...], NDArray[Any]], tuple[Any, bytes]]:
        def call(batch: tuple[Any, ...], into: NDArray[Any]) -> tuple[Any, bytes]:
            told, gradients = local(*batch)
            for part, gradient in zip(_parts(into, variables), gradients, strict=True):
                if gradient is None:
                    part.zero_()
                else:
                    part.copy_(gradient.detach())
            if all(gradient is not None for gradient in gradients):
                return told, b""
            return told, bytes(gradient is not None for gradient in gradients)

        return call

    def tensors(self, batch: Any) -> Any:
        return private.tree.map_structure(
            lambda x: None if x is None else keras.ops.convert_to_tensor(x), batch
        )

    def offset_generators(self, rank: int) -> None:
        offset_by(rank)


def _parts(flat: NDArray[Any], variables: Sequence[Any]) -> list[torch.Tensor]:
    """Views of a flat array, of the variables' shapes, on the CPU."""
    parts = torch.from_numpy(flat).split([int(np.prod(v.shape)) for v in variables])
    return [part.view(tuple(v.shape)) for part, v in zip(parts, variables, strict=True)]
