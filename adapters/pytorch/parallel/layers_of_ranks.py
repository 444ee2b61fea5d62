"""`split="layers"` across processes: each has a copy of the model on its devices, in one row, and
gradients are averaged over the ranks as replicas' are."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any, final

import torch
from torch import nn

from dream._adapter import Plan
from dream._errors import ConfigurationError
from dream._topology import Mesh, own_gpus
from dream.adapters.pytorch import devices
from dream.adapters.pytorch.module import DistributedModule, Make, ModuleRegistry
from dream.adapters.pytorch.optimizer import Forward
from dream.adapters.pytorch.parallel.base import HONOURED, Participants, connect
from dream.adapters.pytorch.parallel.ddp.parallelism import Averaging
from dream.adapters.pytorch.parallel.inner_calls import called_by_user, running_layers
from dream.adapters.pytorch.parallel.layers import DeviceGrid, devices_of_row, placed
from dream.adapters.pytorch.parallel.replicas.train import RecomputedCopies
from dream.adapters.pytorch.private import own_call
from dream.strategies.options import REPLICAS


@final
class LayersOfRanks(Averaging):
    """A copy a rank. Its gradients come by backward passes within one, on the devices' threads, so
    they are averaged once that has ended."""

    keras_block = None
    averages_after = True
    chooses = False
    supports = HONOURED
    supports_for = "Layers on devices, in several processes,"
    instead = "Use 'mirrored', which takes all."

    def __init__(self, plan: Plan) -> None:
        ranks, asked = plan.cluster.world_size, plan.options["data"]
        places: Any = plan.options["place"]
        if asked not in (None, ranks):
            raise ConfigurationError(
                "Under split='layers' each process has one copy of the model. Received: "
                f"data={asked}, {ranks} processes. Remove data=, or start {asked} of them."
            )
        here = _own_devices(plan)
        mesh = Mesh.fit(len(here), data=1, model=devices_of_row(plan), spare="model")
        self._row = DeviceGrid(here, mesh, partial(placed, places, mesh.model), in_order=True)
        options = {option.name: option.default for option in REPLICAS}
        super().__init__(replace(plan, options=options | dict(plan.options)))
        self._recomputing = RecomputedCopies(
            self._row, self.update_options.recompute, self.world, together=False
        )
        self.registry.recomputes = False

    def connect(self) -> Participants:
        self._tell_tuning = self.plan.begin_tuning()
        world, self.wire = connect(self.plan)
        return Participants(world, self._row.first)

    def make(self) -> Make:
        make = super().make()

        def made(
            module: nn.Module, registry: ModuleRegistry, inner: Forward | None
        ) -> DistributedModule:
            self._settle(module, registry)
            plain = own_call(module) if inner is None else inner
            return make(module, registry, partial(self._run, module, plain))

        return made

    def _settle(self, module: nn.Module, registry: ModuleRegistry) -> None:
        """Have its layers lie on their devices before anything looks at its parameters."""
        registry.inside = True  # what follows its forward pass is no training
        try:
            self._row.settle(module)
        finally:
            registry.inside = False

    def _run(self, module: nn.Module, plain: Forward, *args: Any, **kwargs: Any) -> Any:
        if not called_by_user():
            return plain(*args, **kwargs)
        self._recomputing.take(module, [module])
        with running_layers():
            return self._row.call(0, module, module, args, kwargs)


def _own_devices(plan: Plan) -> list[torch.device]:
    """Return the devices of this rank: as many GPUs as asked for, none of another rank's."""
    visible = torch.cuda.device_count() if torch.cuda.is_available() else 0
    row = devices_of_row(plan)
    if visible == 0:
        return devices.several(plan, fewest=row or 1)
    count = plan.devices or row or max(1, visible // plan.cluster.local_world_size)
    first = own_gpus(plan.cluster, visible, count)
    return [torch.device("cuda", first + index) for index in range(count)]
