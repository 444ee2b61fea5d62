"""Keras models on torch under `local_sgd`: parameters end to end, in eager tensors."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, final

import keras
import torch
from numpy.typing import NDArray

from dream._adapter import Plan
from dream.adapters.keras import private
from dream.adapters.keras.asynchronous.block import (
    FlatParameters,
    Local,
    LocalBlock,
    apply_gradients,
)
from dream.adapters.keras.asynchronous.local_sgd import averaging
from dream.adapters.pytorch.keras.engine import TorchEngine
from dream.adapters.pytorch.parallel.parameter_server.optimizer import views_of
from dream.collectives import Communicator


def open_block(plan: Plan, communicator: Communicator) -> LocalBlock:
    """Open the block in which Keras models, on torch, step alone and are averaged."""
    return averaging(TorchEngine(communicator, plan), TorchMachine(), plan)[2]


@final
class TorchMachine(FlatParameters):
    """Parameters end to end on one device."""

    def update(self, optimizer: Any, variables: Sequence[Any]) -> Callable[[Any, bytes], Any]:
        shapes = [v.shape for v in variables]

        @torch.no_grad()
        def apply(gradient: Any, present: bytes) -> Any:
            apply_gradients(optimizer, views_of(gradient, shapes), variables, present)
            return self.flat(variables)

        return apply

    def flat(self, variables: Sequence[Any]) -> NDArray[Any]:
        with torch.no_grad():
            joined = torch.cat([v.value.detach().reshape(-1) for v in variables])
        return joined.cpu().numpy()

    def differentiate(
        self, local: Local, variables: Sequence[Any], *, eager: bool, one_length: bool
    ) -> Callable[[tuple[Any, ...], NDArray[Any]], tuple[Any, bytes]]:
        shapes = [v.shape for v in variables]

        def call(batch: tuple[Any, ...], into: NDArray[Any]) -> tuple[Any, bytes]:
            told, gradients = local(*batch)
            for part, gradient in zip(views_of(into, shapes), gradients, strict=True):
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
