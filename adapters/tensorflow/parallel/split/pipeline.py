"""split="pipeline": runs of layers on devices or ranks, a microbatch after another."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast, final

from dream._mesh import Mesh
from dream.adapters.tensorflow.parallel.split import cutting
from dream.adapters.tensorflow.parallel.split.choice import Choice
from dream.adapters.tensorflow.parallel.split.schedule import Kind
from dream.collectives import Communicator


@final
class Pipeline(Choice):
    """`model_parallel` and `hybrid` with split="pipeline"."""

    def __init__(self, options: Mapping[str, object], axes: Mesh) -> None:
        self._options = options
        self._axes = axes

    def cut(self, model: Any, communicator: Communicator) -> cutting.Cut:
        names = [operation.name for operation in cutting.operations_of(model)]
        wanted = self._stages
        if isinstance(wanted, int) and self._options["stages"] is None:
            wanted = min(wanted, len(names))
        measured = self._options["balance"] == "time"
        costs = cutting.seconds(model) if measured else cutting.parameters(model)
        listed = communicator.broadcast_object([costs.get(name, 0.0) for name in names])
        costs = dict(zip(names, listed, strict=False))  # rank 0's: each measures another time
        return cutting.cut(model, cutting.stages(wanted, self._axes.model, costs))

    @property
    def _stages(self) -> int | list[str]:
        """As asked for; else one on each device, or two where the schedule is interleaved."""
        given = self._options["stages"]
        if isinstance(given, (list, tuple)):
            return list(given)
        if isinstance(given, int):
            return given
        return self._axes.model * (2 if self.kind == "interleaved" else 1)

    @property
    def kind(self) -> Kind:
        return cast(Kind, self._options["schedule"])

    @property
    def microbatches(self) -> int:
        given = self._options["microbatches"]
        if isinstance(given, int):
            return given
        stages = self._stages
        return 2 * (stages if isinstance(stages, int) else len(stages) + 1)
