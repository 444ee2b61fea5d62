"""The evaluator: a process beside the job, which reads what the chief saves, and says how good that
is. Its models are ones of one device."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NoReturn, final

from dream._adapter import Coordinating, Loss, Metric, Plan, Step, Weight
from dream._errors import Unsupported
from dream._topology import Cluster, Topology
from dream.adapters.tensorflow import collectives, runtime
from dream.adapters.tensorflow import evaluate as evaluation
from dream.adapters.tensorflow.adapter import Parallelism
from dream.adapters.tensorflow.data import shard_of_rank
from dream.adapters.tensorflow.parallel.coordinated.block import TRAINING, CoordinatedBlock
from dream.data.partition import Division

_WHY = "An evaluator trains nothing"


@final
class Evaluator(Parallelism, Coordinating):
    """The body of the block runs here too; `topology.role` tells it from the chief."""

    def __init__(self, plan: Plan) -> None:
        super().__init__(plan)
        (device, *_) = runtime.replicas(plan.devices)
        self._topology = Topology.of(plan.cluster, num_replicas=1, device=device, role="evaluator")
        self._communicator = collectives.alone(Cluster())
        self._block = CoordinatedBlock(refused=TRAINING, several=False, why=_WHY)

    def enter(self) -> None:
        self._block.enter()

    def exit(self) -> None:
        self._block.exit()

    def prepare_made(self, item: Any) -> Any:
        return item

    def prepare_data(self, data: Any) -> Any:
        return data

    def train_step(self, model: Any, loss: Loss, optimizer: Any, weight: Weight | None) -> Step:
        _refuse("train_step")

    def evaluate(
        self, model: Any, data: Iterable[Any], metrics: Mapping[str, Metric]
    ) -> dict[str, float]:
        everything = shard_of_rank(0, Division(1))
        return evaluation.evaluate(model, data, metrics, self.communicator, everything)

    def weigh(self, loss: Any, count: Any) -> Any:
        _refuse("weigh")

    def schedule(
        self, function: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]
    ) -> Any:
        _refuse("schedule")

    def join(self) -> None:
        _refuse("join")

    def fetch(self, value: Any) -> Any:
        _refuse("fetch")


def _refuse(asked: str) -> NoReturn:
    raise Unsupported(
        f"{_WHY}, and has no workers. Received: {asked}. Call it where "
        "strategy.topology.role == 'chief'; an evaluator loads what that saves, and evaluates it."
    )
