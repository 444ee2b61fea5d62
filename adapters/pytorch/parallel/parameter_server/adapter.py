"""`parameter_server`: workers that do not wait for one another, and servers that own the model."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import wraps
from typing import Any, NoReturn, final
from weakref import WeakKeyDictionary

import torch
from numpy.typing import NDArray
from torch import nn
from torch.optim import Optimizer
from torch.utils.data import DataLoader

from dream._adapter import Asynchronous, Loss, Metric, Plan, Step, Weight
from dream._errors import Unsupported
from dream._topology import Cluster, Topology
from dream.adapters.pytorch import devices, evaluate, tensors
from dream.adapters.pytorch.checkpoint.checkpointer import TorchCheckpointer
from dream.adapters.pytorch.checkpoint.sharded_state import ShardedState
from dream.adapters.pytorch.data.modes import Modes
from dream.adapters.pytorch.hooks import Hooks, write_files_once
from dream.adapters.pytorch.keras.entry import forbid_fits, refuse_keras
from dream.adapters.pytorch.optimizer import Training
from dream.adapters.pytorch.parallel.parameter_server.loader import LeasedLoaders
from dream.adapters.pytorch.parallel.parameter_server.optimizer import TorchServerOptimizer
from dream.adapters.pytorch.parallel.parameter_server.worker import TorchWorker
from dream.adapters.pytorch.tensors import TorchTensors
from dream.adapters.pytorch.train_step import check_scalar
from dream.adapters.pytorch.update.gradients import Whole
from dream.adapters.pytorch.update.weigh import count_of
from dream.checkpoint.checkpointer import Checkpointer
from dream.collectives import Communicator, Loop, Members
from dream.data.partition import split
from dream.parameter_server.job import (
    ServerJob,
    refuse_before_block,
    refuse_communicator,
    refuse_weigh,
)
from dream.parameter_server.server import serve
from dream.parameter_server.staleness import Staleness
from dream.parameter_server.worker import Worker
from dream.update.update import UpdateOptions


@final
class ParameterServer(Asynchronous):
    """One rank of the job, a worker or a server."""

    def __init__(self, plan: Plan) -> None:
        self._job = ServerJob.of(plan.cluster, plan.options)
        self._seed = plan.seed
        self._topology = Topology.of(
            plan.cluster,
            num_replicas=self._job.roles.workers,
            device=str(devices.choose(plan)),
        )
        self._hooks = Hooks()
        self._joined: tuple[TorchWorker, LeasedLoaders] | None = None

    @property
    def topology(self) -> Topology:
        return self._topology

    @property
    def communicator(self) -> Communicator:
        refuse_communicator()

    def enter(self) -> None:
        if self._job.serves:
            serve(self._job, TorchServerOptimizer())
        if self._joined is None:
            worker = TorchWorker(Worker.join(self._job))
            modes = Modes()
            loaders = LeasedLoaders(worker, self._seed, modes)
            self._joined = worker, loaders
            hooks = self._hooks
            hooks.made_of("loader", loaders.made)
            hooks.made("optimizer", worker.take)
            hooks.making("module", lambda module: refuse_keras(module, "parameter_server"))
            hooks.made("module", worker.untrained.note)
            hooks.made("module", modes.add)
            hooks.wrap("start_group", _refusing_groups)
            hooks.made("scheduler", JobSchedules(worker.worker).take)
            write_files_once(hooks)
        forbid_fits(self._hooks.patches, "parameter_server")
        self._hooks.open()

    def exit(self) -> None:
        self._hooks.close()

    def prepare(self, *objects: Any) -> tuple[Any, ...]:
        worker = self._worker()
        for item in objects:
            refuse_keras(item, "parameter_server")
            if isinstance(item, DataLoader):
                assert self._joined is not None
                self._joined[1].lease(item)
            elif isinstance(item, Optimizer):
                worker.take(item)
            elif isinstance(item, nn.Module):
                worker.untrained.add(item)
        return objects

    def train_step(
        self, model: nn.Module, loss: Loss, optimizer: Optimizer, weight: Weight | None
    ) -> Step:
        worker = self._worker()
        self.prepare(model, optimizer)

        def step(*batch: Any) -> torch.Tensor:
            """Return the mean loss of the batch: this worker's own, or in step with the others
            that of all."""
            inputs, target = split(devices.beside(model, batch))
            worker.ready()
            optimizer.zero_grad(set_to_none=True)
            value = check_scalar(loss(model(*inputs), target))
            value.backward()
            counted = None if weight is None else count_of(weight(*batch))
            mean = worker.push(optimizer, value.item(), counted)
            return torch.tensor(mean, dtype=value.dtype, device=value.device)

        return step

    def evaluate(
        self, model: nn.Module, data: Iterable[Any], metrics: Mapping[str, Metric]
    ) -> dict[str, float]:
        """Evaluate on the newest parameters, each worker for itself: it may be alone."""
        self._worker().worker.refresh()
        with torch.no_grad():
            return evaluate.evaluate(model, data, metrics, _alone())

    def weigh(self, loss: Any, count: Any) -> Any:
        refuse_weigh(count)

    def full_state(self, model: nn.Module) -> dict[str, NDArray[Any]]:
        self._worker().worker.refresh()
        return tensors.whole_state(model)

    @property
    def savers(self) -> Communicator:
        """Each worker by itself: the first one writes, of what the servers hold."""
        return _alone()

    def checkpointer(self, model: Any) -> Checkpointer:
        refuse_keras(model, "parameter_server")
        return TorchCheckpointer(ServedModels(self._job, self._worker()))

    def staleness(self) -> Staleness:
        return self._worker().worker.client.staleness()

    def _worker(self) -> TorchWorker:
        if self._joined is None:
            refuse_before_block()
        return self._joined[0]


def _refusing_groups(start: Callable[..., None]) -> Callable[..., NoReturn]:
    """`init_process_group`, for which servers would be waited for without end."""

    @wraps(start)
    def refuse(*_: Any, **__: Any) -> NoReturn:
        raise Unsupported(
            "Servers run no line of the script, so no process group comes together. Received: "
            "init_process_group under 'parameter_server'. Remove it, or use 'mirrored'."
        )

    return refuse


def _alone() -> Communicator:
    return Communicator(Loop(), TorchTensors(), Members.all_of(Cluster()))


@final
class ServedModels(ShardedState):
    """What the servers hold, of which one update is made of each global batch: between two steps of
    a worker none is, since that takes a part of each."""

    def __init__(self, job: ServerJob, worker: TorchWorker) -> None:
        if not job.in_step and job.roles.workers > 1:
            raise Unsupported(
                "Workers that do not wait for one another are at no one step, so a checkpoint "
                "would be of a training that has not been. Received: save or load under "
                f"'parameter_server' with staleness={job.bound}. Use staleness=0, or "
                "snapshot_every= with `dream run --max-restarts`."
            )
        self.world = self.dealt = _alone()
        self.replicas, self.update_options = job.roles.workers, UpdateOptions()
        self.training = Training(self.update_options, "cpu", 1, Whole())
        self.writes = job.place.rank == 0
        self._worker = worker

    def reshard(self) -> None:
        self._worker.worker.refresh()

    def loading(self) -> None:
        self._worker.check_not_begun("strategy.load")

    def count_updates(self, optimizer: Optimizer, updated: Callable[[], None]) -> None:
        del optimizer  # the servers run one
        self._worker.updated.append(updated)


@dataclass(slots=True)
class _Marks:
    """Updates of the job and pushes of this worker at a schedule's last call; owed: the part of a
    step that is left over."""

    updates: int = 0
    pushes: int = 0
    owed: float = 0.0


@final
class JobSchedules:
    """The learning rate schedules that are made in the block, whose worker makes only some of the
    updates.

    A schedule that a loop steps with each batch goes by the job's updates, not by this worker's
    own: it is stepped on by as many as there were since it was last called. One that is stepped
    between passes counts epochs, as it does on one device.
    """

    def __init__(self, worker: Worker) -> None:
        self._worker = worker
        self._inside = False
        self._marks: WeakKeyDictionary[Any, _Marks] = WeakKeyDictionary()

    def take(self, schedule: Any) -> None:
        """Have a schedule's steps go by the job's updates."""
        if schedule not in self._marks:
            self._marks[schedule] = _Marks()
            schedule.__class__ = self._stepped_class(type(schedule))

    def _stepped_class(self, base: type[Any]) -> type[Any]:
        schedules = self

        def step(self: Any, *args: Any, **kwargs: Any) -> None:
            for _ in range(1 if args or kwargs else schedules.due(self)):
                with schedules._running():
                    base.step(self, *args, **kwargs)

        return type(base.__name__, (base,), {"step": step, "__module__": base.__module__})

    def due(self, schedule: Any) -> int:
        """Return how many steps of one device a call stands for. One schedule's calls of another
        are its own affair."""
        marks, worker = self._marks[schedule], self._worker
        updates, pushes = worker.updates - marks.updates, worker.pushes - marks.pushes
        if self._inside or not worker.inside or not pushes:
            return 1
        marks.updates, marks.pushes = worker.updates, worker.pushes
        marks.owed += updates / pushes
        whole = int(marks.owed)
        marks.owed -= whole
        return whole

    @contextmanager
    def _running(self) -> Iterator[None]:
        before, self._inside = self._inside, True
        try:
            yield
        finally:
            self._inside = before
