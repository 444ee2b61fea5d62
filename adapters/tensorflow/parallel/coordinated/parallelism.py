"""The chief: it runs the script, and hands its steps out to the workers.

TensorFlow cuts variables over several servers, and Keras 3 does not know what it gets: gradients
are taken of the shards and applied to them, and what reads a variable as one array is given one.
"""

from __future__ import annotations

import atexit
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any, NoReturn, final

import keras
import numpy as np
import tensorflow as tf
from numpy.typing import NDArray

from dream import cluster, stall
from dream._adapter import Coordinating, Loss, Metric, Plan, Step, Weight
from dream._errors import ConfigurationError, Unsupported
from dream._log import logger
from dream._topology import Endpoint, Topology
from dream.adapters.tensorflow import evaluate as evaluation
from dream.adapters.tensorflow import private
from dream.adapters.tensorflow.adapter import Parallelism
from dream.adapters.tensorflow.cluster import give_back_sigterm, join_as_task
from dream.adapters.tensorflow.loss import Batch
from dream.adapters.tensorflow.parallel.coordinated.block import CoordinatedBlock
from dream.adapters.tensorflow.parallel.coordinated.dispatch import Dispatcher, Scheduled
from dream.adapters.tensorflow.step import LocalStep, build_model
from dream.collectives import Communicator
from dream.parameter_server.coordinated import Attendance, Tasks, attend
from dream.parameter_server.job import refuse_before_block, refuse_communicator, refuse_weigh

_ALL_LOOPS = (
    "fit", "train_on_batch", "evaluate", "predict", "test_on_batch", "predict_on_batch",
)  # fmt: skip
_WHY = "Keras's loops do not run on TensorFlow's own parameter servers"

_ELEMENT_BY_ELEMENT = (
    "Adadelta", "Adagrad", "Adam", "AdamW", "Adamax", "Ftrl", "Lion", "Nadam", "RMSprop", "SGD",
)  # fmt: skip
"""Keras's optimizers that step each element by itself, so that a shard steps as it would in the
whole."""
_LEAST_DIMS = 2
"""Biases, running statistics and states of generators stay whole."""


@final
class Coordinated(Parallelism, Coordinating):
    """A rank of a job with a chief. Only the chief comes out of `enter`."""

    def __init__(self, plan: Plan) -> None:
        super().__init__(plan)
        self._tasks = tasks = Tasks.of(plan.cluster, plan.options)
        text = plan.options["partitioner"]
        self._partitioner = None if text is None else Partitioner(str(text), tasks.servers)
        kind, _ = tasks.own
        self._topology = Topology.of(
            plan.cluster, num_replicas=tasks.workers, device="CPU:0", role=kind
        )
        self._block = CoordinatedBlock(refused=_ALL_LOOPS, several=tasks.workers > 1, why=_WHY)
        self._strategy: tf.distribute.ParameterServerStrategy | None = None
        self._dispatcher: Dispatcher | None = None
        self._inside = ExitStack()
        self._evaluated: dict[Any, Any] = {}

    @property
    def communicator(self) -> Communicator:
        refuse_communicator()

    def enter(self) -> None:
        if self._topology.role != "chief":
            serve(self._tasks)
        if self._strategy is None:
            self._strategy, attendance = lead(self._tasks, self._partitioner)
            self._dispatcher = Dispatcher(self._tasks, attendance, self._strategy)
        with ExitStack() as inside:
            inside.enter_context(self._strategy.scope())
            inside.enter_context(readable_shards())
            self._block.enter()
            inside.callback(self._block.exit)
            self._inside = inside.pop_all()

    def exit(self) -> None:
        self._inside.close()

    def prepare_made(self, item: Any) -> Any:
        self._block.check_made_here(item)
        return item

    def prepare_data(self, data: Any) -> Any:
        if isinstance(data, tf.data.Dataset):
            return data  # the chief reads it, and each batch goes to one worker
        if callable(data):
            return self._dispatch.per_worker(data)
        raise Unsupported(
            "prepare takes Keras models, Keras optimizers, tf.data.Dataset of global batches, and "
            f"functions that make one on each worker. Received: {type(data).__name__}. Make it "
            "one of these."
        )

    def train_step(self, model: Any, loss: Loss, optimizer: Any, weight: Weight | None) -> Step:
        for item in (model, optimizer):
            self._block.check_made_here(item)
        inner = LocalStep(model, loss, optimizer, weight, None, ranks=True, trained=trained)
        fresh = True

        def step(*batch: Any) -> Scheduled:
            """Hand the batch out to a worker, and return the mean loss over it."""
            nonlocal fresh
            stall.stepped()
            tensors = tf.nest.map_structure(tf.convert_to_tensor, batch)
            if fresh:
                self._build(model, optimizer, tensors)
                self._dispatch.trace(inner, tensors)
                fresh = False
            return self._dispatch.schedule(inner, tensors, {})

        return step

    def evaluate(
        self, model: Any, data: Iterable[Any], metrics: Mapping[str, Metric]
    ) -> dict[str, float]:
        """Evaluate by the workers, a batch each, on what all steps so far have made."""
        key = id(model), tuple(metrics.items())
        if key not in self._evaluated:
            checked = evaluation.checked(metrics)

            def sums(*batch: Any) -> tf.Tensor:
                return evaluation.sums(model, batch, checked)

            self._evaluated[key] = sums
        function = self._evaluated[key]
        self._dispatch.join()
        parts = [
            self._dispatch.schedule(
                function, tf.nest.map_structure(tf.convert_to_tensor, batch), {}
            )
            for batch in data
        ]
        return evaluation.means(metrics, sum(self._dispatch.fetch(parts)))

    def weigh(self, loss: Any, count: Any) -> Any:
        refuse_weigh(count)

    def full_state(self, model: Any) -> dict[str, NDArray[Any]]:
        """What the servers hold once all that was handed out is done."""
        self._dispatch.join()
        return super().full_state(model)

    def schedule(
        self, function: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]
    ) -> Scheduled:
        return self._dispatch.schedule(function, args, kwargs)

    def join(self) -> None:
        self._dispatch.join()

    def fetch(self, value: Any) -> Any:
        return self._dispatch.fetch(value)

    @property
    def _dispatch(self) -> Dispatcher:
        if self._dispatcher is None:
            refuse_before_block()
        return self._dispatcher

    def _build(self, model: Any, optimizer: Any, batch: Batch) -> None:
        """Make what Keras would make during the first step, on the servers."""
        assert self._strategy is not None
        with self._strategy.scope(), readable_shards():
            build_model(model, batch)
            check_shards(model, optimizer)
            if not optimizer.built:
                optimizer.build(trained(model))


_PROTOCOL = "grpc"


def serve(tasks: Tasks) -> NoReturn:
    """Do as the chief says, as a worker or a server, to the end of training and of this process:
    nothing of the script runs after it."""
    kind, index = tasks.own
    server = tf.distribute.Server(
        _spec(tasks, join_as_task(tasks.place)), kind, index, protocol=_PROTOCOL
    )
    give_back_sigterm()
    try:
        attend(tasks)
    finally:
        del server
    raise AssertionError("a dismissed rank has ended")


def lead(
    tasks: Tasks, partitioner: Partitioner | None
) -> tuple[tf.distribute.ParameterServerStrategy, Attendance]:
    """Connect to the workers and servers, and dismiss them when this process ends."""
    cluster.export_grpc_fails_fast()
    endpoints = join_as_task(tasks.place)
    attendance = Attendance(tasks)
    atexit.register(attendance.dismiss)
    attendance.wait()
    workers = ",".join(map(str, tasks.working))
    cluster.post(tasks.place, "roles/workers", workers.encode())
    resolver = tf.distribute.cluster_resolver.SimpleClusterResolver(
        _spec(tasks, endpoints), task_type="chief", task_id=0, rpc_layer=_PROTOCOL
    )
    strategy = tf.distribute.ParameterServerStrategy(resolver, variable_partitioner=partitioner)
    give_back_sigterm()
    logger.info("parameter_server, TensorFlow's own: %s", tasks)
    return strategy, attendance


def _spec(tasks: Tasks, endpoints: tuple[Endpoint, ...]) -> tf.train.ClusterSpec:
    return tf.train.ClusterSpec(tasks.addresses(endpoints))


@final
class Partitioner:
    """Says in how many shards TensorFlow is to cut a variable. text: the `partitioner=` option."""

    def __init__(self, text: str, servers: int) -> None:
        kinds = tf.distribute.experimental.partitioners
        makers: dict[str, Callable[[int], Any]] = {
            "min_size": lambda size: kinds.MinSizePartitioner(size, max_shards=servers),
            "max_size": kinds.MaxSizePartitioner,
            "fixed": kinds.FixedShardsPartitioner,
        }
        kind, _, number = text.partition(":")
        if kind not in makers or not number.isdecimal() or int(number) < 1:
            raise ConfigurationError(
                f"This is not a valid partitioner. Received: partitioner={text!r}. Write "
                "'min_size:BYTES', 'max_size:BYTES' or 'fixed:SHARDS'."
            )
        self._cut = makers[kind](int(number))

    def __call__(self, shape: Any, dtype: Any, **others: Any) -> Sequence[int]:
        shape = tf.TensorShape(shape)
        if shape.rank < _LEAST_DIMS or not tf.as_dtype(dtype).is_floating:
            return [1] * shape.rank
        found: Sequence[int] = self._cut(shape, dtype, **others)
        return found


@contextmanager
def readable_shards() -> Iterator[None]:
    """Inside, a variable that is cut as it is made can be read as one array."""

    def create(make: Callable[..., Any], **given: Any) -> Any:
        made = make(**given)
        if private.cut_over_servers(made) is not None:
            made.__array__ = lambda dtype=None: np.asarray(tf.convert_to_tensor(made), dtype)
            made.numpy = made.__array__
        return made

    with tf.variable_creator_scope(create):
        yield


def trained(model: Any) -> list[Any]:
    """Return what is trained of a model: its variables, and the shards of those that are cut."""
    found: list[Any] = []
    for variable in model.trainable_variables:
        shards = _shards(variable)
        found.extend([variable] if shards is None else shards)
    return found


def check_shards(model: Any, optimizer: Any) -> None:
    """Refuse an optimizer and constraints that look at a whole variable, where one is cut."""
    cut = [v for v in model.trainable_variables if _shards(v) is not None]
    if not cut:
        return
    inner = vars(optimizer).get("inner_optimizer") or optimizer
    whole = type(inner).__name__ if type(inner).__name__ not in _ELEMENT_BY_ELEMENT else ""
    if any(each.clipnorm is not None for each in (inner, optimizer)):
        whole = "clipnorm, a norm of each variable"
    if any(v.constraint is not None for v in cut):
        whole = "a constraint on a weight"
    if whole:
        raise Unsupported(
            f"This looks at a whole variable, and {cut[0].path} is cut over the servers. Received: "
            f"{whole}. Remove partitioner, or use an optimizer that steps element by element: "
            f"{', '.join(_ELEMENT_BY_ELEMENT)}."
        )


def _shards(variable: Any) -> list[Any] | None:
    held = variable.value if isinstance(variable, keras.Variable) else variable
    return private.cut_over_servers(held)
