"""A server's shard: parameters under an optimizer, gradients that wait to be whole, snapshots."""

from __future__ import annotations

import re
from collections.abc import Hashable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, final

from dream._errors import CheckpointError
from dream._log import logger
from dream._plain import Garbled, pack, unpack
from dream.files.whole import write_whole
from dream.parameter_server.coordinator import Coordinator
from dream.parameter_server.job import ServerJob
from dream.parameter_server.optimizer import ServerOptimizer
from dream.parameter_server.protocol import Layout, Registration

if TYPE_CHECKING:
    from numpy.typing import NDArray

_NAME = re.compile(r"server(\d+)-(\d{8,})")


@dataclass(frozen=True, slots=True)
class BatchGradient:
    """The gradient of a batch, or of a part of one. present: as in `ServerOptimizer.step`; weight:
    how many things the loss is the mean over."""

    gradient: NDArray[Any]
    present: bytes
    weight: float
    loss: float


@final
class GradientParts:
    """Batches of which some parts have come."""

    def __init__(self) -> None:
        self._waiting: dict[Hashable, dict[int, BatchGradient]] = {}

    def add(
        self, batch: Hashable, index: int, parts: int, came: BatchGradient
    ) -> BatchGradient | None:
        """Return the mean over the whole batch, once all of it is here. A part that comes again
        takes its own place."""
        if parts == 1:
            return came
        import numpy as np

        waiting = self._waiting.setdefault(batch, {})
        waiting[index] = came
        if len(waiting) < parts:
            own = np.array(came.gradient)  # it lies in a buffer that the next is read into
            waiting[index] = BatchGradient(own, came.present, came.weight, came.loss)
            return None
        del self._waiting[batch]
        return _mean([waiting[part] for part in range(parts)])


def _mean(parts: list[BatchGradient]) -> BatchGradient:
    """Return the weighted mean, added up in the parts' order."""
    import numpy as np

    total = sum(part.weight for part in parts)
    gradient, loss = np.zeros_like(parts[0].gradient), 0.0
    for part in parts:
        share = part.weight / total if total else 0.0
        if share:  # the mean over nothing is nan
            gradient += part.gradient * share
            loss += part.loss * share
    masks = [part.present for part in parts]
    either = bytes(map(max, zip(*masks, strict=True))) if all(masks) else b""
    return BatchGradient(gradient, either, total, loss)


@final
class ShardState:
    """One server's shard of the model: its parameters and their optimizer.

    version: how many updates were made; loss: of the last one; layout, dtype: what the
    parameters are, once a worker has told; untrained: what else of the model starts alike.
    """

    def __init__(
        self, optimizer: ServerOptimizer, job: ServerJob, coordinator: Coordinator | None
    ) -> None:
        self._optimizer, self._coordinator = optimizer, coordinator
        self.layout: Layout | None = None
        self.dtype = ""
        self.untrained = b""
        self.version = 0
        self.loss = 0.0
        self._spec = b""
        self._every = job.every or 1
        self._snapshots: Snapshots | None = None
        if job.every is not None and job.folder is not None:
            server = job.place.rank - job.roles.workers
            self._snapshots = Snapshots(job.folder, server, job.roles.servers)
            self._resume(self._snapshots)

    @property
    def nbytes(self) -> int:
        """Of the parameters."""
        return self._optimizer.values.nbytes

    def begin(self, said: Registration, values: NDArray[Any]) -> None:
        """Take the parameters that start, and the optimizer over them."""
        self._optimizer.build(said.spec, values)
        self.layout, self.dtype, self._spec = said.layout, said.dtype, said.spec
        self.untrained = said.untrained
        if self._snapshots is not None:
            self._snapshot(self._snapshots)

    def update(self, whole: BatchGradient, settings: Any, staleness: int) -> None:
        """Make one update by the gradient of a whole batch."""
        self._optimizer.step(whole.gradient, whole.present, settings)
        self.version += 1
        self.loss = whole.loss
        if self._coordinator is not None:
            self._coordinator.updated(staleness)
        if self._snapshots is not None and self.version % self._every == 0:
            self._snapshot(self._snapshots)

    def read_settings(self, settings: bytes) -> Any:
        return self._optimizer.read_settings(settings)

    def optimizer_state(self) -> bytes:
        return self._optimizer.save()

    def copy_values(self, into: memoryview | None) -> memoryview:
        """Copy the parameters as they are now; into `into`, if it was made before."""
        import numpy as np

        values = self._optimizer.values
        if into is None:
            into = np.empty_like(values).data
        np.copyto(np.asarray(into), values)
        return into

    def _snapshot(self, snapshots: Snapshots) -> None:
        coordinator = self._coordinator
        content = {
            "layout": self.layout,
            "dtype": self.dtype,
            "spec": self._spec,
            "untrained": self.untrained,
            "values": self._optimizer.values.copy(),
            "optimizer": self._optimizer.save(),
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
        self._spec, self.untrained = content["spec"], content["untrained"]
        self._optimizer.build(self._spec, content["values"])
        self._optimizer.restore(content["optimizer"])
        if self._coordinator is not None:
            self._coordinator.restore(content["coordinator"])
            logger.warning("training resumes from the snapshot after %d updates", self.version)


@final
class Snapshots:
    """The files of one server, in the folder of its job: `server0-00000120` holds what it was
    after 120 updates. The launcher made the folder for this job alone."""

    def __init__(self, folder: Path, server: int, servers: int) -> None:
        self._folder, self._server, self._servers = folder, server, servers

    def write(self, version: int, content: dict[str, Any]) -> None:
        """Write it whole or not at all. Older ones go once every server has a newer one in common:
        until then training goes on from them."""
        data = pack(content)
        write_whole(self._file(version), lambda file: file.write(data))
        versions = self._versions()
        common = _newest_common(versions)
        for old in versions[self._server]:
            if common is not None and old < common:
                self._file(old).unlink(missing_ok=True)

    def newest(self) -> tuple[int, dict[str, Any]] | None:
        """Return the last version that every server has; None where nothing was kept, and training
        begins. `CheckpointError` where there are files without a common version."""
        versions = self._versions()
        common = _newest_common(versions)
        if common is None:
            if any(max(own, default=0) for own in versions):
                raise self._torn(versions)
            return None  # nothing, or the parameters that start, which not all had come to keep
        return common, self._read(common)

    def forget_after(self, version: int) -> None:
        """Remove what came after it: it must not mix with what comes now."""
        for newer in self._versions()[self._server]:
            if newer > version:
                self._file(newer).unlink(missing_ok=True)

    def _read(self, version: int) -> dict[str, Any]:
        file = self._file(version)
        try:
            content: dict[str, Any] = unpack(file.read_bytes())
        except (OSError, Garbled) as error:
            raise CheckpointError(
                f"A snapshot cannot be read. Received: {file} ({error}). Start the job from "
                "scratch."
            ) from error
        return content

    def _torn(self, versions: list[list[int]]) -> CheckpointError:
        told = ", ".join(f"server {server}: {own or 'none'}" for server, own in enumerate(versions))
        return CheckpointError(
            "The servers' snapshots have no common version, so training cannot resume from them. "
            f"Received: {self._folder}, which has {told}. Start the job from scratch, or restore "
            "the missing files."
        )

    def _versions(self) -> list[list[int]]:
        """List each server's versions, ascending."""
        found: list[list[int]] = [[] for _ in range(self._servers)]
        for file in self._folder.iterdir():
            name = _NAME.fullmatch(file.name)
            if name is not None and int(name[1]) < self._servers:
                found[int(name[1])].append(int(name[2]))
        return [sorted(versions) for versions in found]

    def _file(self, version: int) -> Path:
        return self._folder / f"server{self._server}-{version:08d}"


def _newest_common(versions: list[list[int]]) -> int | None:
    first, *others = map(set, versions)
    return max(first.intersection(*others), default=None)
