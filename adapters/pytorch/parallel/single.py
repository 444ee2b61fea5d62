"""`single`: one device, the oracle. The order of shuffled data comes from seed and epoch."""

from __future__ import annotations

from typing import final

from dream._adapter import Plan
from dream.adapters.pytorch import devices
from dream.adapters.pytorch.parallel.base import Parallelism, Participants, alone
from dream.adapters.pytorch.parallel.ddp.parallelism import KERAS_BLOCK, Ddp
from dream.update.update import UpdateOptions


def single(plan: Plan) -> Parallelism:
    """One device: plain, or one replica of `mirrored` where an option is to be honoured."""
    return Ddp(plan) if UpdateOptions.of(plan.options).asked else Single(plan)


@final
class Single(Parallelism):
    """One process, one device."""

    keras_block = KERAS_BLOCK

    def connect(self) -> Participants:
        return Participants(alone(self.plan), devices.choose(self.plan))
