"""Who trains: the one device, the devices of this process, or one device in each of several."""

from __future__ import annotations

from dataclasses import dataclass

import tensorflow as tf

from dream import _registry
from dream._adapter import Plan
from dream._errors import ConfigurationError
from dream._topology import Topology
from dream.adapters.keras.engine import Exchange
from dream.adapters.tensorflow import runtime
from dream.adapters.tensorflow.compression import choosing as travelling
from dream.adapters.tensorflow.tensors import TensorFlowTensors
from dream.collectives import Communicator, Loop, Members
from dream.update.update import Knobs


@dataclass(frozen=True, slots=True)
class Replicas:
    """Set up before TensorFlow's first op.

    distribution: what drives this process's several devices; None where it has one.
    exchange: how the ranks' gradients become one; None for their mean.
    """

    topology: Topology
    communicator: Communicator
    distribution: tf.distribute.Strategy | None = None
    exchange: Exchange | None = None


def one(plan: Plan) -> Replicas:
    """One device."""
    if plan.devices not in (None, 1):
        raise ConfigurationError(
            f"Strategy {plan.spec.name!r} is one device. Received: devices={plan.devices}. Leave "
            "devices out, or use 'mirrored'."
        )
    (device,) = runtime.replicas(1)
    topology = Topology.of(plan.cluster, num_replicas=1, device=device)
    return Replicas(topology, _alone(plan))


def synchronous(plan: Plan) -> Replicas:
    """The devices of this process where it is alone, else one in every process."""
    return _devices(plan) if plan.cluster.alone else _ranks(plan)


def _devices(plan: Plan) -> Replicas:
    """A single device needs no strategy of TensorFlow's."""
    devices = runtime.replicas(plan.devices)
    travelling.check(Knobs.of(plan.options), len(devices))
    distribution = runtime.mirrored(devices) if len(devices) > 1 else None
    topology = Topology.of(plan.cluster, num_replicas=len(devices), device=devices[0])
    return Replicas(topology, _alone(plan), distribution)


def _ranks(plan: Plan) -> Replicas:
    travelling.check(Knobs.of(plan.options), 1)
    device = runtime.local_device(plan.cluster, plan.devices)
    wire = _registry.reduction("tensorflow", plan.transport)(plan.cluster, plan.transport)
    communicator = Communicator(wire, TensorFlowTensors(), Members.all_of(plan.cluster))
    topology = Topology.of(plan.cluster, num_replicas=plan.cluster.world_size, device=device)
    exchange = travelling.exchange_of(Knobs.of(plan.options), wire, plan.cluster.world_size)
    return Replicas(topology, communicator, exchange=exchange)


def _alone(plan: Plan) -> Communicator:
    return Communicator(Loop(), TensorFlowTensors(), Members.all_of(plan.cluster))
