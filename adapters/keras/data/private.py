"""Keras's private names that sources of data need. Read off Keras 3.15, and held by
tests/adapters/keras/test_keras_private.py."""

from __future__ import annotations

from types import MethodType
from typing import Any

from keras.src.trainers.data_adapters import array_slicing, get_data_adapter, is_tf_dataset
from keras.src.trainers.data_adapters.array_data_adapter import ArrayDataAdapter
from keras.src.trainers.data_adapters.array_slicing import Sliceable
from keras.src.trainers.data_adapters.data_adapter import DataAdapter
from keras.src.trainers.data_adapters.data_adapter_utils import class_weight_to_sample_weights
from keras.src.trainers.data_adapters.generator_data_adapter import GeneratorDataAdapter
from keras.src.trainers.data_adapters.tf_dataset_adapter import TFDatasetAdapter
from keras.utils import PyDataset

__all__ = ["ArrayDataAdapter", "DataAdapter", "Sliceable", "get_data_adapter", "is_tf_dataset"]


def split(arrays: Any, fraction: float) -> Any:
    """Return ((x, y, sample_weight), validation data): the last `fraction` of arrays apart."""
    return array_slicing.train_validation_split(arrays, validation_split=fraction)


def sliceable(inputs: Any, backend: str) -> Any:
    """Return arrays as Keras slices them, floats in its float type."""
    return array_slicing.convert_to_sliceable(inputs, target_backend=backend)


def read_no_batch_to_build(model: Any) -> None:
    """Have Keras's trainer on torch read no batch of fit's to build the model: dream has built it,
    but for a compiled loss that the model's own leaves aside."""

    def build(self: Any, iterator: Any = None, data_batch: Any = None) -> None:
        del iterator
        if data_batch is not None:
            type(self)._symbolic_build(self, data_batch=data_batch)

    model._symbolic_build = MethodType(build, model)


def array_facts(adapter: Any) -> tuple[Any, int, int, Any]:
    """Return (inputs, samples, batch size, shuffle) of Keras's adapter for arrays."""
    return adapter._inputs, adapter._num_samples, adapter._batch_size, adapter._shuffle


def sample_weights(y: Any, class_weight: Any) -> Any:
    """Return the weight of each sample by its class."""
    return class_weight_to_sample_weights(y, class_weight)


def is_generator(adapter: Any) -> bool:
    """Whether Keras's adapter reads a Python generator."""
    return isinstance(adapter, GeneratorDataAdapter)


def read_in_threads(adapter: Any, by_tensorflow: bool) -> bool:
    """Whether Python code makes the batches of Keras's adapter ahead of their steps, in threads.

    by_tensorflow: whether TensorFlow trains, which reads Python's sources so.
    """
    if isinstance(adapter, TFDatasetAdapter):
        return _runs_python(adapter._dataset)
    return by_tensorflow or getattr(adapter, "enqueuer", None) is not None


_READ_AHEAD = {
    "_MapAndBatchDataset",
    "_ParallelBatchDataset",
    "_ParallelInterleaveDataset",
    "_ParallelMapDataset",
    "_PrefetchDataset",
}


def gains_prefetch(adapter: Any) -> bool:
    """Whether TensorFlow adds a prefetch to a tf.data.Dataset, as it does where the last operation
    does not read ahead: by itself, or since TensorFlow makes it one of several calls at a time."""
    last = adapter.get_tf_dataset()
    asked = last.options().experimental_optimization
    if False in (asked.apply_default_optimizations, asked.inject_prefetch):
        return False
    while type(last).__name__ in ("_IgnoreErrorsDataset", "_OptionsDataset"):
        last = last._inputs()[0]
    several = asked.map_parallelization is not False and _is_made_parallel(last)
    return type(last).__name__ not in _READ_AHEAD and not several


def _is_made_parallel(dataset: Any) -> bool:
    if type(dataset).__name__ != "_MapDataset" or dataset._force_synchronous:
        return False
    operations = dataset._map_func.function.graph.get_operations()
    return not any(op.op_def.is_stateful and op.type != "Assert" for op in operations)


def is_reordered(adapter: Any) -> bool:
    """Whether Keras's adapter reads a PyDataset, by no workers, that does something of its own as
    an epoch ends."""
    data = getattr(adapter, "py_dataset", None)
    kind = type(getattr(data, "inner", data))
    own = getattr(kind, "on_epoch_end", None) is not PyDataset.on_epoch_end
    return data is not None and adapter.enqueuer is None and own


def as_asked_for(adapter: Any) -> Any:
    """Return the batches of a PyDataset without the prefetch that Keras ends them with."""
    return adapter.get_tf_dataset()._inputs()[0]


def _runs_python(dataset: Any) -> bool:
    graphs = (f.function.graph.as_graph_def().SerializeToString() for f in dataset._functions())
    return any(b"PyFunc" in graph for graph in graphs) or any(map(_runs_python, dataset._inputs()))
