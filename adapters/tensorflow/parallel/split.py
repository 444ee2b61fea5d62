"""`sharded`, `model_parallel` and `hybrid`: what all ways to split a Keras model share.

Every process reads the global batches, and dream takes the whole step, under Keras's own loops.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager, ExitStack, nullcontext
from typing import Any

import keras

from dream._adapter import Adapter, Metric, Plan
from dream._errors import ConfigurationError
from dream._patches import Patches
from dream._topology import Cluster, Mesh
from dream.adapters.keras.engine import Engine
from dream.adapters.keras.hooks import dtype_policy, take_made
from dream.adapters.tensorflow import evaluate, randomness
from dream.adapters.tensorflow.adapter import Parallelism
from dream.adapters.tensorflow.collectives import alone
from dream.adapters.tensorflow.data import GlobalBatches
from dream.adapters.tensorflow.keras.engine import ProcessEngine
from dream.adapters.tensorflow.parallel.split_fit import Fitting, SplitRunner, written_once
from dream.update.update import UpdateOptions

_HONOURED: dict[str, tuple[object, ...]] = {
    "accumulate": (),
    "clip_norm": (),
    "clip_value": (),
    "precision": (),
    "recompute": (),
    "sync_batch_norm": (True,),
}
_PIPELINE = ("stages", "schedule", "microbatches", "balance")
_WITHOUT = {
    "pipeline": ("plan", "place"),
    "tensor": (*_PIPELINE, "place"),
    "layers": (*_PIPELINE, "plan"),
}
"""Options that say nothing of a split."""


def model_parallel(plan: Plan) -> Adapter:
    """The adapter that `split=` asks for."""
    split = str(plan.options["split"])
    for name in _WITHOUT[split]:
        if name in plan.options and plan.options[name] != plan.spec.option(name).default:
            raise ConfigurationError(
                f"Option {name!r} does not apply to split={split!r}. Received: "
                f"{name}={plan.options[name]!r}. Remove it, or choose another split."
            )
    if split == "tensor":
        from dream.adapters.tensorflow.parallel.sharding.parallelism import TensorParallelism

        return TensorParallelism(plan)
    from dream.adapters.tensorflow.parallel.pipeline.parallelism import PipelineParallelism

    return PipelineParallelism(plan)


def mesh_of(plan: Plan, replicas: int) -> Mesh:
    """The mesh that a plan asks for, of so many devices or ranks."""
    data, model = plan.options["data"], plan.options["model"]
    assert data is None or isinstance(data, int)
    assert model is None or isinstance(model, int)
    if plan.spec.name == "model_parallel" and data is None and model is None:
        data = 1
    return Mesh.fit(replicas, data=data, model=model, spare="model")


class SplitParallelism(Parallelism):
    """Models in parts. global_batches: what this process's loaders dealt; engine: what says how an
    update is made."""

    global_batches: GlobalBatches

    def __init__(self, plan: Plan) -> None:
        super().__init__(plan)
        update_options = UpdateOptions.of(plan.options)
        update_options.only(
            _HONOURED,
            "A split Keras model",
            "BatchNorm sees the whole batch there, or is refused: remove it, or use 'mirrored'.",
        )
        self.engine = ProcessEngine(alone(Cluster()), plan)
        self.engine.update_options = update_options
        runner = self.connect(plan)
        fits = ProcessEngine(alone(Cluster()), plan)
        fits.readers = self.communicator
        self.fitting = Fitting(runner, fits, self.topology)
        self._patches, self._open = Patches(), ExitStack()

    @abstractmethod
    def connect(self, plan: Plan) -> SplitRunner:
        """Set up devices and ranks: topology, communicator, global_batches. Return what runs
        models."""

    @abstractmethod
    def place(self, model: Any) -> None:
        """Split a built model."""

    @abstractmethod
    def sums(self, model: Any, metrics: evaluate.Metrics) -> Callable[..., Any]:
        """From a global batch, each metric summed over its samples, then their number."""

    def making(self) -> AbstractContextManager[Any]:
        """Inside, models are made."""
        return nullcontext()

    @property
    def keras_engine(self) -> Engine:
        return self.engine

    def enter(self) -> None:
        """The constructors of models and optimizers are changed, and the functions that save and
        load models."""
        randomness.start(self.communicator)
        self._open.enter_context(dtype_policy(self.engine.update_options.precision))
        written = written_once(self.communicator)
        take_made(self._patches, self.fitting.take, self.fitting.optimizer, written)
        self._open.enter_context(self.making())

    def exit(self) -> None:
        self._patches.restore()
        self._open.close()

    def prepare_made(self, item: Any) -> Any:
        if not isinstance(item, keras.Model):
            return self.fitting.optimizer(item)
        self.fitting.take(item)
        if item.built:
            self.place(item)
        return item

    def prepare_data(self, data: Any) -> Any:
        return self.global_batches.deal(data)

    def evaluate(
        self, model: Any, data: Iterable[Any], metrics: Mapping[str, Metric]
    ) -> dict[str, float]:
        sums = self.sums(model, evaluate.checked(metrics))
        total = sum(sums(*batch) for batch in self.global_batches.of(data))
        return evaluate.means(metrics, total)
