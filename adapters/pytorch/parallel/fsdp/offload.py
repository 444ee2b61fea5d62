"""Shards that lie in the memory of the host: each unit's come to the GPU to be gathered, gradients
go back when they are added up, and the optimizer steps on the CPU."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NoReturn, final

import torch
from torch import nn
from torch.distributed.fsdp import CPUOffloadPolicy

from dream._errors import Unsupported
from dream._log import logger


@final
class Offload:
    """Keeps shards on the host, and says where that offloads nothing.

    device: what is computed on.
    """

    def __init__(self, device: torch.device) -> None:
        self.policy = CPUOffloadPolicy(pin_memory=device.type != "cpu")
        self.held = torch.device("cpu")
        if device.type == "cpu":
            logger.info(
                "cpu_offload=True offloads nothing here: there is no GPU, and parameters, "
                "gradients and optimizer state lie on the CPU without it"
            )

    def keep_penalties_off(self, parameters: Iterable[nn.Parameter]) -> None:
        """Refuse gradients that come to shards by no gathering: autograd would add them on the CPU
        while the others are on their way there. On a machine without a GPU too, so that a script is
        taken on both or on none."""
        for parameter in parameters:
            trained = parameter.requires_grad
            parameter.requires_grad_(True)  # a frozen one may be trained later
            parameter.register_hook(_refuse)
            parameter.requires_grad_(trained)


def _refuse(gradient: torch.Tensor) -> NoReturn:
    raise Unsupported(
        "A loss that is taken of parameters too (a penalty on them) would add its gradient on the "
        "CPU while that of the model is on its way there. Received: such a loss of a parameter of "
        f"shape {tuple(gradient.shape)} with cpu_offload=True. Use the optimizer's weight_decay=, "
        "compute the penalty inside the model's forward, or remove cpu_offload."
    )
