"""What must happen before TensorFlow's first op, once for a process: its devices, its cluster."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tensorflow as tf

from dream import cluster, stall
from dream._errors import ConfigurationError, Unsupported
from dream._topology import Cluster, Endpoint
from dream.adapters.tensorflow import choosing, server, sigterm
from dream.adapters.tensorflow.errors import too_late
from dream.adapters.tensorflow.meeting import wait_for_all
from dream.adapters.tensorflow.parallel.split import dtensor


@dataclass(slots=True)
class _Started:
    """What this process has set up; TensorFlow allows it once."""

    mirrored: tf.distribute.MirroredStrategy | None = None
    devices: tuple[str, ...] = ()
    joined: Cluster | None = None
    cluster: tf.distribute.MultiWorkerMirroredStrategy | None = None
    mesh: bool = False


_started = _Started()
_SPLIT = ("sharded", "model_parallel", "hybrid")


def set_up_early(name: str, given: Mapping[str, object]) -> None:
    """What a block of strategy `name` needs, before the script's first op. The block finds it
    done. given: the options that `--strategy` was written with."""
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
        local_device(place, devices)
        if name == "horovod" or cluster.frameworks_differ():
            return
        if reduction == "auto":
            reduction = "shared_memory" if choosing.shared(place) else "grpc"
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
            f"There are not so many GPUs. Received: devices={devices}, GPUs {len(gpus)}. Use "
            f"devices={len(gpus)} or fewer, or hide the GPUs with CUDA_VISIBLE_DEVICES=''."
        )
    return tuple(f"GPU:{index}" for index in range(devices or len(gpus)))


def logical_cpus(count: int) -> tuple[str, ...]:
    """So many devices of this process among several, each a part of its CPU."""
    _make_logical_cpus(count)
    return tuple(f"CPU:{index}" for index in range(count))


def mirrored(devices: tuple[str, ...]) -> tf.distribute.MirroredStrategy:
    """The process's one MirroredStrategy: a second one would break the collectives of both."""
    if _started.mirrored is None:
        _started.mirrored = tf.distribute.MirroredStrategy(list(devices))
        _started.devices = devices
    if _started.devices != devices:
        raise ConfigurationError(
            "TensorFlow can have one set of mirrored devices in a process. Received: "
            f"{len(devices)} devices, after a block with {len(_started.devices)}. Use the same "
            "devices=, or another process."
        )
    return _started.mirrored


def local_device(place: Cluster, devices: int | None) -> str:
    """The one device of this rank among several: the GPU of its local rank, else the CPU."""
    if devices not in (None, 1):
        raise Unsupported(
            f"Across processes each rank drives one device. Received: devices={devices}, world "
            f"size {place.world_size}. Start more ranks with `dream run -n`, or use one process."
        )
    gpus = tf.config.list_physical_devices("GPU")
    if not gpus:
        return "CPU:0"
    if place.local_rank >= len(gpus):
        raise ConfigurationError(
            f"Every rank needs a GPU of its own. Received: local rank {place.local_rank}, GPUs "
            f"{len(gpus)}. Start fewer ranks, or hide the GPUs with CUDA_VISIBLE_DEVICES=''."
        )
    try:
        tf.config.set_visible_devices(gpus[place.local_rank], "GPU")
    except RuntimeError as error:
        raise too_late("this rank's GPU") from error
    return "GPU:0"


def waits_in_functions() -> None:
    """Collectives run inside functions of TensorFlow's, where only the stack tells of a wait."""
    eager = Path(tf.__file__).parent / "python" / "eager"
    files = [str(eager / name) for name in ("execute.py", "context.py")]
    stall.waits_inside(dict.fromkeys(files, "a TensorFlow function"), pooled=True)


def join(place: Cluster, *, nccl: bool) -> None:
    """Bring up TensorFlow's cluster of all ranks. Done once; again with the same cluster, it
    returns at once."""
    if _started.joined is None:
        _started.cluster = _bring_up(place, nccl=nccl)
        sigterm.give_back()
        _started.joined = place
    if _started.joined != place:
        raise ConfigurationError(
            "TensorFlow can be in one cluster in a process. Received: another cluster than that "
            "of an earlier block. Use another process."
        )


def join_mesh(place: Cluster) -> None:
    """The same, as DTensor brings it up: its mesh spans the ranks' devices."""
    if _started.joined is None:
        workers = _met(place)
        cluster.export_dtensor(workers, place.rank)
        dtensor.join()
        sigterm.give_back()
        _started.joined = place
        _started.mesh = True
    if not _started.mesh:
        raise ConfigurationError(
            "TensorFlow can be in one cluster in a process. Received: a mesh over the ranks, after "
            "a block of another strategy. Use another process."
        )


def _bring_up(place: Cluster, *, nccl: bool) -> tf.distribute.MultiWorkerMirroredStrategy:
    workers = _met(place)
    kind = tf.distribute.experimental.CommunicationImplementation
    try:
        return tf.distribute.MultiWorkerMirroredStrategy(
            cluster_resolver=_resolver(workers, place.rank),
            communication_options=tf.distribute.experimental.CommunicationOptions(
                implementation=kind.NCCL if nccl else kind.AUTO
            ),
        )
    except RuntimeError as error:
        raise too_late("a cluster") from error


def _met(place: Cluster) -> tuple[Endpoint, ...]:
    """The ranks' endpoints, once all are there; this one's is TensorFlow's from here on."""
    _check_cold()
    workers = cluster.exchange_endpoints(place)
    wait_for_all(workers, place.rank, cluster.startup_seconds())
    server.hold(place, workers)
    return workers


def _resolver(
    workers: tuple[Endpoint, ...], rank: int
) -> tf.distribute.cluster_resolver.ClusterResolver:
    gpus = len(tf.config.get_visible_devices("GPU"))
    return tf.distribute.cluster_resolver.SimpleClusterResolver(
        tf.train.ClusterSpec({"worker": [str(worker) for worker in workers]}),
        task_type="worker",
        task_id=rank,
        rpc_layer="grpc",
        num_accelerators={"GPU": gpus} if gpus else {},
    )


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


def _check_cold() -> None:
    """Refuse before waiting for peers, not after. TensorFlow takes another number of threads
    only while it has not started."""
    threads = tf.config.threading
    before = threads.get_inter_op_parallelism_threads()
    try:
        threads.set_inter_op_parallelism_threads(before + 1)
    except RuntimeError as error:
        raise too_late("a cluster") from error
    threads.set_inter_op_parallelism_threads(before)


def on_gpu(array: Any) -> tf.Tensor:
    """A NumPy array as a tensor on this rank's GPU, the only one that it sees."""
    with tf.device("GPU:0"):
        return tf.identity(tf.constant(array))
