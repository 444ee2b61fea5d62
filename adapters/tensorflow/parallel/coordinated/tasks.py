"""What each rank of TensorFlow's own parameter servers brings up."""

from __future__ import annotations

import atexit
from typing import NoReturn

import tensorflow as tf

from dream import cluster
from dream._log import logger
from dream._topology import Endpoint
from dream.adapters.tensorflow.cluster import give_back_sigterm, join_as_task
from dream.adapters.tensorflow.parallel.coordinated.partition import Partitioner
from dream.parameter_server.coordinated import Attendance, Tasks, attend

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
