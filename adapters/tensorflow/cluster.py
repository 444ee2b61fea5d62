"""TensorFlow's cluster of all ranks: waited for, brought up once, and kept to its own address."""

from __future__ import annotations

import contextlib
import signal
import socket
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import tensorflow as tf

from dream import cluster
from dream._errors import ConfigurationError, WorkerFailed
from dream._log import logger
from dream._topology import Cluster, Endpoint
from dream.adapters.tensorflow import private
from dream.adapters.tensorflow.errors import too_late
from dream.adapters.tensorflow.parallel.sharding import dtensor
from dream.shared_memory import listening

_SERVER = "TensorFlow's server"
_PAUSE = 0.05
_KNOCK_TIMEOUT = 2.0


@dataclass(slots=True)
class _Joined:
    """The cluster that this process is in; TensorFlow allows one. mesh: as DTensor has it."""

    place: Cluster | None = None
    strategy: tf.distribute.MultiWorkerMirroredStrategy | None = None
    mesh: bool = False


_joined = _Joined()


def join(place: Cluster, *, nccl: bool) -> None:
    """Bring up TensorFlow's cluster of all ranks. Done once; again with the same cluster, it
    returns at once."""
    if _joined.place is None:
        _joined.strategy = _bring_up(place, nccl=nccl)
        give_back_sigterm()
        _joined.place = place
    if _joined.place != place:
        raise ConfigurationError(
            "A TensorFlow process can join only one cluster. Received: another cluster than that "
            "of an earlier block. Use another process."
        )


def join_mesh(place: Cluster) -> None:
    """The same, as DTensor brings it up: its mesh spans the ranks' devices."""
    if _joined.place is None:
        workers = _met(place)
        cluster.export_dtensor(workers, place.rank)
        dtensor.join()
        give_back_sigterm()
        _joined.place = place
        _joined.mesh = True
    if not _joined.mesh:
        raise ConfigurationError(
            "A TensorFlow process can join only one cluster. Received: a mesh over the ranks, "
            "after a block of another strategy. Use another process."
        )


def join_as_task(place: Cluster) -> tuple[Endpoint, ...]:
    """The same, as TensorFlow's own parameter servers have it: each rank has a task of its own.
    Returns where they listen; the caller starts what does, and waits for the others."""
    if _joined.place is not None:
        raise ConfigurationError(
            "A TensorFlow process can join only one cluster. Received: parameter servers, after a "
            "block of another strategy. Use another process."
        )
    _check_cold(early=False)
    endpoints = cluster.exchange_endpoints(place)
    _listen_at_own(place, endpoints)
    _joined.place = place
    return endpoints


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
    _listen_at_own(place, workers)
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


def _check_cold(*, early: bool = True) -> None:
    """Refuse before waiting for peers, not after. TensorFlow takes another number of threads
    only while it has not started."""
    threads = tf.config.threading
    before = threads.get_inter_op_parallelism_threads()
    try:
        threads.set_inter_op_parallelism_threads(before + 1)
    except RuntimeError as error:
        raise too_late("a cluster", early=early) from error
    threads.set_inter_op_parallelism_threads(before)


def _listen_at_own(place: Cluster, workers: Sequence[Endpoint]) -> None:
    """Have this rank's server listen at its own endpoint alone; rank 0 says what is open. It would
    take every interface, and serves whoever comes: graphs that read and write files, too."""
    own = workers[place.rank]
    address = cluster.local_address(own.host)
    at = Endpoint(address, own.port) if address else None
    why = listening.hold(place, _SERVER, (private.LIBRARY,), at=at)
    if address is None:
        why = f"{own.host} is no address of this host's"
    if place.rank != 0:
        return
    if why:
        logger.warning(
            "%ss listen on every interface, without a token, and read and write files for whoever "
            "reaches %s: %s. Keep others out with a firewall, or use another reduction=",
            _SERVER, ", ".join(map(str, workers)), why,
        )  # fmt: skip
    elif not place.one_host:
        logger.info(
            "%ss listen without a token, and read and write files for whoever reaches %s. Let "
            "nobody but the job's hosts do so: a private network, a firewall, or another "
            "reduction=", _SERVER, ", ".join(map(str, workers)),
        )  # fmt: skip


def give_back_sigterm() -> None:
    """SIGTERM means to a rank what it means to Python. Once the cluster is up TensorFlow has taken
    the signal, and does nothing with it but keep it from the script's own handler and from the
    system, which would end the rank."""
    with contextlib.suppress(ValueError):  # only the main thread may
        handler = signal.getsignal(signal.SIGTERM)
        if handler is not None:
            signal.signal(signal.SIGTERM, handler)


def wait_for_all(workers: Sequence[Endpoint], rank: int, timeout: float) -> None:
    """Return once every rank's endpoint answers; raise `WorkerFailed` naming those that do not."""
    missing = [other for other in range(len(workers)) if other != rank]
    deadline = time.monotonic() + timeout
    with _listening(workers[rank], rank):
        while True:
            missing = [other for other in missing if not _answers(workers[other])]
            if not missing:
                return
            if time.monotonic() > deadline:
                raise _never_came(missing, workers, timeout)
            time.sleep(_PAUSE)


@contextmanager
def _listening(own: Endpoint, rank: int) -> Iterator[None]:
    """The rank's own port, answered by the kernel: nobody has to accept a knock."""
    try:
        server = cluster.listener_at(cluster.local_address(own.host) or "", own.port)
    except OSError as error:
        raise ConfigurationError(
            f"The port of rank {rank} is taken. Received: {own} ({error.strerror}). Give the "
            "cluster free ports, or let `dream run` choose them."
        ) from error
    with server:
        yield


def _answers(peer: Endpoint) -> bool:
    try:
        socket.create_connection((peer.host, peer.port), _KNOCK_TIMEOUT).close()
    except OSError:
        return False
    return True


def _never_came(
    missing: Sequence[int], workers: Sequence[Endpoint], timeout: float
) -> WorkerFailed:
    who = ", ".join(f"rank {other} ({workers[other]})" for other in missing)
    return WorkerFailed(
        f"Not every rank started. Received: no answer within {timeout:g} s from {who}. Start every "
        "rank with the same cluster, and look at the missing ranks' logs."
    )
