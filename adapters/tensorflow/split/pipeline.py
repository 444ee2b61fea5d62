"""split="pipeline": runs of layers on the devices of one process, a microbatch after another."""

from __future__ import annotations

from typing import Any, cast, final

from dream.adapters.tensorflow.split import cutting
from dream.adapters.tensorflow.split.parted_adapter import PartedAdapter
from dream.adapters.tensorflow.split.schedule import Kind


@final
class Pipeline(PartedAdapter):
    """`model_parallel` and `hybrid` with split="pipeline"."""

    def _cut(self, model: Any) -> cutting.Cut:
        wanted = self._stages
        if isinstance(wanted, int):
            operations = cutting.operations_of(model)
            wanted = (
                min(wanted, len(operations)) if self._plan.options["stages"] is None else wanted
            )
        measured = self._plan.options["balance"] == "time"
        costs = cutting.seconds(model) if measured else cutting.parameters(model)
        return cutting.cut(model, cutting.stages(wanted, self._axes.model, costs))

    @property
    def _stages(self) -> int | list[str]:
        """As asked for; else one on each device, or two where the schedule is interleaved."""
        given = self._plan.options["stages"]
        if isinstance(given, (list, tuple)):
            return list(given)
        if isinstance(given, int):
            return given
        return self._axes.model * (2 if self._kind == "interleaved" else 1)

    @property
    def _kind(self) -> Kind:
        return cast(Kind, self._plan.options["schedule"])

    @property
    def _microbatches(self) -> int:
        given = self._plan.options["microbatches"]
        if isinstance(given, int):
            return given
        stages = self._stages
        return 2 * (stages if isinstance(stages, int) else len(stages) + 1)
