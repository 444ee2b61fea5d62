"""The evaluator: a process beside the job, which reads what the chief saves, and says how good that
is. Its models are ones of one device."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NoReturn, final

import numpy as np
import tensorflow as tf
from numpy.typing import NDArray

from dream._adapter import Coordinating, Metric, Plan, Step
from dream._errors import Unsupported
from dream._topology import Cluster, Topology
from dream.adapters.tensorflow import evaluate as evaluation
from dream.adapters.tensorflow import runtime
from dream.adapters.tensorflow.data import shard_of_rank
from dream.adapters.tensorflow.parallel.coordinated.block import TRAINING, CoordinatedBlock
from dream.adapters.tensorflow.tensors import TensorFlowTensors
from dream.collectives import Communicator, Loop, Members
from dream.data.partition import Division

_WHY = "An evaluator trains nothing"


@final
class Evaluator(Coordinating):
    """The body of the block runs here too; `topology.role` tells it from the chief."""

    def __init__(self, plan: Plan) -> None:
        (device, *_) = runtime.replicas(plan.devices)
        self._topology = Topology.of(plan.cluster, num_replicas=1, device=device, role="evaluator")
        self._alone = Communicator(Loop(), TensorFlowTensors(), Members.all_of(Cluster()))
        self._block = CoordinatedBlock(refused=TRAINING, several=False, why=_WHY)

    @property
    def topology(self) -> Topology:
        return self._topology

    @property
    def communicator(self) -> Communicator:
        return self._alone

    def enter(self) -> None:
        self._block.enter()

    def exit(self) -> None:
        self._block.exit()

    def prepare(self, *objects: Any) -> tuple[Any, ...]:
        return objects

    def train_step(
        self,
        model: Any,
        loss: Callable[..., Any],
        optimizer: Any,
        weight: Callable[..., Any] | None,
    ) -> Step:
        _refuse("train_step")

    def evaluate(
        self, model: Any, data: Iterable[Any], metrics: Mapping[str, Metric]
    ) -> dict[str, float]:
        shard = shard_of_rank(0, Division(1))
        return evaluation.evaluate(model, data, metrics, self._alone, shard, _here, resyncs=None)

    def weigh(self, loss: Any, count: Any) -> Any:
        _refuse("weigh")

    def full_state(self, model: Any) -> dict[str, NDArray[Any]]:
        return {v.path: np.asarray(v) for v in model.variables}

    def schedule(
        self, function: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]
    ) -> Any:
        _refuse("schedule")

    def join(self) -> None:
        _refuse("join")

    def fetch(self, value: Any) -> Any:
        _refuse("fetch")


def _here(function: Callable[..., Any], batch: tuple[Any, ...]) -> list[tf.Tensor]:
    return [function(*batch)]


def _refuse(asked: str) -> NoReturn:
    raise Unsupported(
        f"{_WHY}, and has no workers. Received: {asked}. Call it where "
        "strategy.topology.role == 'chief'; an evaluator loads what that saves, and evaluates it."
    )
