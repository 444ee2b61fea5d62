"""What a server holds: its shard of the parameters under an optimizer, and its snapshots."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, final

from dream._log import logger
from dream.parameter_server.coordinator import Coordinator
from dream.parameter_server.owner import Owner
from dream.parameter_server.parts import Part
from dream.parameter_server.snapshots import Snapshots
from dream.parameter_server.words import Layout, Registration

if TYPE_CHECKING:
    from numpy.typing import NDArray


@dataclass(frozen=True, slots=True)
class Rules:
    """bound: the `staleness=` option; every: updates between snapshots; folder: where they go."""

    bound: int | None
    every: int | None
    folder: Path | None


@final
class Holding:
    """version: how many updates were made; loss: of the last one; layout, dtype: what the
    parameters are, once a worker has told; rest: what else of the model starts alike."""

    def __init__(
        self, owner: Owner, rules: Rules, server: int, servers: int, coordinator: Coordinator | None
    ) -> None:
        self._owner, self._every, self._coordinator = owner, rules.every or 1, coordinator
        self.layout: Layout | None = None
        self.dtype = ""
        self.rest = b""
        self.version = 0
        self.loss = 0.0
        self._recipe = b""
        self._snapshots: Snapshots | None = None
        if rules.every is not None and rules.folder is not None:
            self._snapshots = Snapshots(rules.folder, server, servers)
            self._resume(self._snapshots)

    @property
    def nbytes(self) -> int:
        """Of the parameters."""
        return self._owner.values.nbytes

    def begin(self, said: Registration, values: NDArray[Any]) -> None:
        """The parameters that start, and the optimizer over them."""
        self._owner.build(said.recipe, values)
        self.layout, self.dtype, self._recipe = said.layout, said.dtype, said.recipe
        self.rest = said.rest
        if self._snapshots is not None:
            self._snapshot(self._snapshots)

    def update(self, whole: Part, settings: Any, staleness: int) -> None:
        """One update by the gradient of a whole batch."""
        self._owner.step(whole.gradient, whole.present, settings)
        self.version += 1
        self.loss = whole.loss
        if self._coordinator is not None:
            self._coordinator.updated(staleness)
        if self._snapshots is not None and self.version % self._every == 0:
            self._snapshot(self._snapshots)

    def read_settings(self, settings: bytes) -> Any:
        return self._owner.read_settings(settings)

    def state(self) -> bytes:
        return self._owner.save()

    def copied(self, into: memoryview | None) -> memoryview:
        """The parameters as they are now; `into`, if it was made before."""
        import numpy as np

        values = self._owner.values
        if into is None:
            into = np.empty_like(values).data
        np.copyto(np.asarray(into), values)
        return into

    def _snapshot(self, snapshots: Snapshots) -> None:
        coordinator = self._coordinator
        content = {
            "layout": self.layout,
            "dtype": self.dtype,
            "recipe": self._recipe,
            "rest": self.rest,
            "values": self._owner.values.copy(),
            "optimizer": self._owner.save(),
            "coordinator": None if coordinator is None else coordinator.save(),
        }
        snapshots.write(self.version, content)

    def _resume(self, snapshots: Snapshots) -> None:
        found = snapshots.newest()
        if found is None:
            return
        self.version, content = found
        snapshots.forget_after(self.version)
        self.layout, self.dtype = content["layout"], content["dtype"]
        self._recipe, self.rest = content["recipe"], content["rest"]
        self._owner.build(self._recipe, content["values"])
        self._owner.restore(content["optimizer"])
        if self._coordinator is not None:
            self._coordinator.restore(content["coordinator"])
            logger.warning("training goes on from the snapshot after %d updates", self.version)
