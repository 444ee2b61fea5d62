"""`parameter_server`: workers that do not wait for one another, and servers that own the model.

TensorFlow's own ParameterServerStrategy is taken by engine="tensorflow" alone: Keras 3's `fit` does
not run under it, and nothing bounds how stale a worker is.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, final

import tensorflow as tf
from numpy.typing import NDArray

from dream._adapter import Adapter, Asynchronous, Loss, Metric, Plan, Step, Weight
from dream._errors import Unsupported
from dream._topology import Cluster, Topology
from dream.adapters.keras.asynchronous.block import LocalBlock
from dream.adapters.keras.asynchronous.fit import WalkFeed, leased
from dream.adapters.keras.asynchronous.optimizer import KerasServerOptimizer
from dream.adapters.keras.asynchronous.parameter_server import KerasWorker, PushedSteps
from dream.adapters.tensorflow import collectives, runtime
from dream.adapters.tensorflow import evaluate as evaluation
from dream.adapters.tensorflow.adapter import Parallelism
from dream.adapters.tensorflow.data import shard_of_rank
from dream.adapters.tensorflow.engine import example, explained
from dream.adapters.tensorflow.errors import translated
from dream.adapters.tensorflow.keras.machine import TensorFlowMachine
from dream.adapters.tensorflow.loss import count_of
from dream.adapters.tensorflow.step import LocalStep, build
from dream.collectives import Communicator
from dream.data.partition import Division
from dream.parameter_server.job import (
    ServerJob,
    refuse_before_block,
    refuse_communicator,
    refuse_weigh,
)
from dream.parameter_server.server import serve
from dream.parameter_server.staleness import Staleness
from dream.parameter_server.worker import Worker


def parameter_server(plan: Plan) -> Adapter:
    """Return dream's own servers, or TensorFlow's where the `engine=` option says so."""
    if plan.options["engine"] == "tensorflow":
        if plan.cluster.evaluator:
            from dream.adapters.tensorflow.parallel.coordinated.evaluator import Evaluator

            return Evaluator(plan)
        from dream.adapters.tensorflow.parallel.coordinated.parallelism import Coordinated

        return Coordinated(plan)
    if plan.options["partitioner"] is not None:
        raise Unsupported(
            "dream's own servers cut parameters by size, by themselves. Received: "
            f"partitioner={plan.options['partitioner']!r}. Remove it, or add engine='tensorflow'."
        )
    return ParameterServer(plan)


@final
class ParameterServer(Parallelism, Asynchronous):
    """One rank of the job, a worker or a server."""

    def __init__(self, plan: Plan) -> None:
        super().__init__(plan)
        self._job = job = ServerJob.of(plan.cluster, plan.options)
        self._seed = plan.seed or 0
        device = "CPU:0" if job.serves else runtime.local_device(plan.cluster, plan.devices)
        self._topology = Topology.of(plan.cluster, num_replicas=job.roles.workers, device=device)
        self._joined: tuple[KerasWorker, LocalBlock] | None = None

    @property
    def communicator(self) -> Communicator:
        refuse_communicator()

    def enter(self) -> None:
        if self._job.serves:
            serve(self._job, KerasServerOptimizer(TensorFlowMachine()))
        if self._joined is None:
            worker = KerasWorker(Worker.join(self._job), TensorFlowMachine())
            steps = PushedSteps(worker, example, explained)
            block = LocalBlock(steps, self._seed, worker.take, "parameter_server")
            self._joined = worker, block
        self._joined[1].enter()

    def exit(self) -> None:
        assert self._joined is not None
        self._joined[1].exit()

    def prepare_made(self, item: Any) -> Any:
        return self._working()[1].prepare(item)

    def prepare_data(self, data: Any) -> Any:
        return LeasedDataset(data, self._working()[0])

    def train_step(self, model: Any, loss: Loss, optimizer: Any, weight: Weight | None) -> Step:
        worker, _ = self._working()
        worker.take(optimizer)
        inner = LocalStep(model, loss, optimizer, weight, None, ranks=True)
        run: Callable[..., Any] | None = None

        def step(*batch: Any) -> tf.Tensor:
            """Return the mean loss of the batch: this worker's own, or in step with the others
            that of all."""
            nonlocal run
            batch = worker.machine.tensors(batch)
            with translated():
                if run is None:
                    build(model, optimizer, batch)
                state = worker.ready(model, optimizer)
                if run is None:
                    run = worker.machine.differentiate(
                        worker.caught.of(inner, state.order),
                        state.order,
                        eager=False,
                        one_length=False,
                    )
                value, present = run(batch, state.gradient)
                counted = float(count_of(batch) if weight is None else weight(*batch))
            return tf.constant(worker.worker.push(float(value), counted, present), value.dtype)

        return step

    def evaluate(
        self, model: Any, data: Iterable[Any], metrics: Mapping[str, Metric]
    ) -> dict[str, float]:
        """Evaluate on the newest parameters, each worker for itself: it may be alone."""
        self._working()[0].worker.refresh()
        alone, everything = collectives.alone(Cluster()), shard_of_rank(0, Division(1))
        whole = data.whole if isinstance(data, LeasedDataset) else data
        return evaluation.evaluate(model, whole, metrics, alone, everything)

    def weigh(self, loss: Any, count: Any) -> Any:
        refuse_weigh(count)

    def full_state(self, model: Any) -> dict[str, NDArray[Any]]:
        self._working()[0].worker.refresh()
        return super().full_state(model)

    def staleness(self) -> Staleness:
        return self._working()[0].worker.client.staleness()

    def _working(self) -> tuple[KerasWorker, LocalBlock]:
        if self._joined is None:
            refuse_before_block()
        return self._joined


@final
class LeasedDataset:
    """A dataset of global batches, iterated as often as one likes: the batches that this worker is
    dealt, an epoch each time."""

    def __init__(self, dataset: Any, worker: KerasWorker) -> None:
        if not isinstance(dataset, tf.data.Dataset):
            raise Unsupported(
                "prepare takes Keras models, Keras optimizers and tf.data.Dataset of global "
                f"batches. Received: {type(dataset).__name__}. Make it one with "
                "tf.data.Dataset.from_tensor_slices(...).batch(size); fit takes the rest as it is."
            )
        self.whole = dataset
        self._worker = worker.worker
        self._number = worker.next_loader()
        self._passes = 0

    def __len__(self) -> int:
        return len(self.whole)

    def __iter__(self) -> Iterator[Any]:
        feed = WalkFeed(self.whole, int(self.whole.cardinality()))
        key = self._number, self._passes
        self._passes += 1
        for batch, _ in leased(self._worker, key, feed):
            yield batch
