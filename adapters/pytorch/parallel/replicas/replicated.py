"""`data_parallel`: one process, a replica on each of its devices."""

from __future__ import annotations

from typing import final

from torch import nn

from dream._adapter import Plan
from dream.adapters.pytorch import devices
from dream.adapters.pytorch.parallel.replicas.adapter import OneProcess
from dream.adapters.pytorch.parallel.replicas.team import Replicas, Team


@final
class DataParallel(OneProcess):
    """The loss is computed on each device where the step is dream's; in the user's own loop the
    outputs are gathered on the first."""

    def _gather(self, plan: Plan) -> Team:
        return Replicas(devices.several(plan))

    def _settle(self, model: nn.Module) -> None:
        model.to(self._team.first)
