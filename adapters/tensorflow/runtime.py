"""The devices of a process, set up once, before TensorFlow's first op."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import tensorflow as tf

from dream import cluster, stall
from dream._errors import ConfigurationError, Unsupported
from dream._topology import Cluster, own_gpus
from dream.adapters.tensorflow import private
from dream.adapters.tensorflow.cluster import join, join_mesh
from dream.adapters.tensorflow.errors import too_late
from dream.shared_memory.groups import serves


@dataclass(slots=True)
class _Started:
    """The devices that this process has set up; TensorFlow allows it once."""

    mirrored: tf.distribute.MirroredStrategy | None = None
    devices: tuple[str, ...] = ()
    adding: str = ""


_ADDING = {
    "nccl": tf.distribute.NcclAllReduce,
    "hierarchical_copy": tf.distribute.HierarchicalCopyAllReduce,
    "one_device": tf.distribute.ReductionToOneDevice,
}
"""What `cross_device_ops` may name."""

_started = _Started()
_SPLIT = ("sharded", "model_parallel", "hybrid")


def set_up_early(name: str, given: Mapping[str, object]) -> None:
    """Set up what a block of strategy `name` needs, before the script's first op. The block finds
    it done. given: the options that `--strategy` was written with."""
    place = cluster.detect()
    devices = given.get("devices")
    assert devices is None or isinstance(devices, int)
    reduction = str(given.get("reduction", "auto"))
    if name == "parameter_server":
        return
    if place.alone:
        if name != "single":
            replicas(devices)
    elif name in _SPLIT:
        logical_cpus(devices or 1)
        if name == "sharded" or given.get("split") == "tensor":
            join_mesh(place)
    else:
        if name == "local_sgd":
            local_device(place, devices)
        own_devices(place, devices or 1)
        if name == "horovod" or cluster.frameworks_differ():
            return
        if reduction == "auto":
            reduction = "shared_memory" if shares_memory(place) else "grpc"
        if reduction in ("grpc", "nccl", "hierarchical"):
            join(place, nccl=reduction == "nccl")


def replicas(devices: int | None) -> tuple[str, ...]:
    """The devices of the replicas that one process drives: every GPU, else one CPU; an integer
    takes so many GPUs, and makes so many logical devices of the CPU where there is none."""
    gpus = tf.config.list_physical_devices("GPU")
    if not gpus:
        _make_logical_cpus(devices or 1)
        return tuple(f"CPU:{index}" for index in range(devices or 1))
    if devices is not None and devices > len(gpus):
        raise ConfigurationError(
            f"There are fewer GPUs than requested. Received: devices={devices}, GPUs {len(gpus)}. "
            f"Use devices={len(gpus)} or fewer, or hide the GPUs with CUDA_VISIBLE_DEVICES=''."
        )
    return tuple(f"GPU:{index}" for index in range(devices or len(gpus)))


def logical_cpus(count: int) -> tuple[str, ...]:
    """So many devices of this process among several, each a part of its CPU."""
    _make_logical_cpus(count)
    return tuple(f"CPU:{index}" for index in range(count))


def mirrored(
    devices: tuple[str, ...], adding: str = "auto", *, alone: bool = True
) -> tf.distribute.MirroredStrategy:
    """The process's one MirroredStrategy: a second one would break the collectives of both. adding:
    of `_ADDING`. alone: whether there is no other rank, whose devices TensorFlow would take for
    this one's."""
    if adding == "auto" and not alone:
        adding = "one_device"
    _check_adding(adding, devices)
    if _started.mirrored is None:
        ops = None if adding == "auto" else _ADDING[adding]()
        _started.mirrored = tf.distribute.MirroredStrategy(list(devices), ops)
        _started.devices, _started.adding = devices, adding
    if (_started.devices, _started.adding) != (devices, adding):
        raise ConfigurationError(
            "A TensorFlow process can have only one set of mirrored devices, with one way to add "
            f"up their gradients. Received: {len(devices)} devices, cross_device_ops={adding!r}, "
            f"after a block with {len(_started.devices)} and {_started.adding!r}. Use the same "
            "devices= and cross_device_ops=, or another process."
        )
    return _started.mirrored


def _check_adding(adding: str, devices: tuple[str, ...]) -> None:
    if adding == "nccl" and not all("GPU" in device for device in devices):
        raise Unsupported(
            "NCCL adds up what lies on GPUs. Received: cross_device_ops='nccl', devices "
            f"{', '.join(devices)}. Use 'auto', or GPUs."
        )
    if adding == "hierarchical_copy" and len(devices) % 2:
        raise Unsupported(
            "TensorFlow's hierarchical copy adds up two halves of the devices, and leaves the last "
            f"of an odd number out. Received: cross_device_ops={adding!r}, {len(devices)} devices. "
            "Use 'auto', or an even number."
        )


def local_device(place: Cluster, devices: int | None) -> str:
    """The one device of this rank among several: its own GPU, else the CPU."""
    if devices not in (None, 1):
        raise Unsupported(
            "Across processes each rank of this strategy drives one device. Received: "
            f"devices={devices}, world size {place.world_size}. Start more ranks with `dream run "
            "-n`, or use one process."
        )
    return own_devices(place, 1)[0]


def own_devices(place: Cluster, count: int) -> tuple[str, ...]:
    """So many devices of this rank among several: GPUs of its own, else logical ones of the CPU."""
    gpus = tf.config.list_physical_devices("GPU")
    if not gpus:
        return logical_cpus(count)
    first = own_gpus(place, len(gpus), count)
    try:
        tf.config.set_visible_devices(gpus[first : first + count], "GPU")
    except RuntimeError as error:
        raise too_late("this rank's GPU") from error
    return tuple(f"GPU:{index}" for index in range(count))


def shares_memory(place: Cluster) -> bool:
    """Whether `reduction="auto"` takes shared memory: for CPU tensors on one host."""
    return not tf.config.list_physical_devices("GPU") and serves(place)


def waits_in_functions() -> None:
    """Collectives run inside functions of TensorFlow's, where only the stack tells of a wait."""
    stall.waits_inside(dict.fromkeys(private.waiting_files(), "a TensorFlow function"), pooled=True)


def _make_logical_cpus(count: int) -> None:
    cpu = tf.config.list_physical_devices("CPU")[0]
    made = tf.config.get_logical_device_configuration(cpu)
    if count == 1 or (made is not None and len(made) >= count):
        return
    try:
        tf.config.set_logical_device_configuration(
            cpu, [tf.config.LogicalDeviceConfiguration()] * count
        )
    except RuntimeError as error:
        raise too_late(f"{count} logical devices") from error


def on_gpu(array: Any) -> tf.Tensor:
    """A NumPy array as a tensor on this rank's GPU, the only one that it sees."""
    with tf.device("GPU:0"):
        return tf.identity(tf.constant(array))
