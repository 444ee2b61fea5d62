"""TensorFlow's DTensor: every experimental name that dream uses. Held by
tests/adapters/tensorflow/parallel.

What it does not say, and dream goes round:
- In a tf.function the order of an assignment and a later read of the same variable is lost, and
  the read gives what was there before: `MeshVariable` remembers what was assigned.
- A variable that does not lie on the mesh is one on each device, which drift apart in silence:
  `compiled` refuses it.
- A tensor's dim lies along one axis of the mesh, so a batch cannot be shared out along two.
- A collective that not all ranks enter waits for ever: `Consistency` has them agree before.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import tensorflow as tf
from numpy.typing import NDArray
from tensorflow.experimental import dtensor as _dtensor

NAMES = (
    "DVariable", "Layout", "UNSHARDED", "create_distributed_mesh", "create_mesh", "fetch_layout",
    "initialize_accelerator_system", "is_dtensor", "pack", "relayout", "unpack",
)  # fmt: skip
"""All that is used of tensorflow.experimental.dtensor."""

DVariable = _dtensor.DVariable
UNSHARDED = _dtensor.UNSHARDED
Specs = tuple[str | None, ...]
"""For each dim of a tensor the mesh axis that it is sharded along; None where it is whole."""


def local_mesh(axes: Mapping[str, int], devices: Sequence[str]) -> Any:
    """The mesh of one process's devices, the last axis innermost."""
    return _dtensor.create_mesh(list(axes.items()), devices=list(devices))


def distributed_mesh(axes: Mapping[str, int], devices: Sequence[str]) -> Any:
    """The mesh of every rank's `devices`, rank after rank, the last axis innermost."""
    with _logging_is_the_scripts():
        return _dtensor.create_distributed_mesh(list(axes.items()), local_devices=list(devices))


def join() -> None:
    """Bring up the cluster that DTENSOR_JOBS and its like in the environment name."""
    with _logging_is_the_scripts():
        _dtensor.initialize_accelerator_system("CPU", enable_coordination_service=True)


@contextmanager
def _logging_is_the_scripts() -> Iterator[None]:
    """TensorFlow says lines inside, which would set logging up before the script does."""
    root = logging.getLogger()
    known = list(root.handlers)
    try:
        yield
    finally:
        for handler in [h for h in root.handlers if h not in known]:
            root.removeHandler(handler)


def layout(mesh: Any, specs: Specs) -> Any:
    return _dtensor.Layout([UNSHARDED if axis is None else axis for axis in specs], mesh)


def specs_of(tensor: Any) -> Specs:
    """How a DTensor or a DVariable lies."""
    found = getattr(tensor, "layout", None) or _dtensor.fetch_layout(tensor)
    return tuple(None if spec == UNSHARDED else spec for spec in found.sharding_specs)


def placed(array: NDArray[Any], mesh: Any, specs: Specs) -> tf.Tensor:
    """The whole array, which every rank has, as a DTensor: each device is given its part alone."""
    places = [_part(array.shape, mesh, specs, at) for at in mesh.local_device_locations()]
    parts = [np.array(array[place], order="C") for place in places]  # a view may change under us
    return _dtensor.pack([tf.convert_to_tensor(part) for part in parts], layout(mesh, specs))


def relaid(tensor: tf.Tensor, mesh: Any, specs: Specs) -> tf.Tensor:
    """The same values, laid out otherwise; in a tf.function or outside."""
    return _dtensor.relayout(tensor, layout(mesh, specs))


def is_placed(tensor: Any) -> bool:
    return bool(_dtensor.is_dtensor(tensor))


def local(tensor: Any) -> list[tf.Tensor]:
    """The parts that lie on this process's devices."""
    return list(_dtensor.unpack(tensor))


def whole(tensor: Any, mesh: Any) -> tf.Tensor:
    """An ordinary tensor with all values. Every rank calls it."""
    if not is_placed(tensor):
        return tensor
    if any(specs_of(tensor)):
        tensor = relaid(tensor, mesh, (None,) * tensor.shape.rank)
    return local(tensor)[0]


def _part(
    shape: Sequence[int], mesh: Any, specs: Specs, at: Mapping[str, int]
) -> tuple[slice, ...]:
    """Where a device's part of an array is. at: the device's index along each axis."""
    found = []
    for size, axis in zip(shape, specs, strict=True):
        each = size if axis is None else size // mesh.dim_size(axis)
        first = 0 if axis is None else at[axis] * each
        found.append(slice(first, first + each))
    return tuple(found)
