"""The communicator of a job without a strategy."""

from __future__ import annotations

from dream import _choice, _registry, cluster, stall
from dream._errors import ConfigurationError
from dream._log import speak_as
from dream.collectives import Communicator, Loop, Members
from dream.mixed import ranks


def communicator(
    reduction: str = "auto", *, framework: str | None = None, check: bool = True
) -> Communicator:
    """The ranks of this job, to call collectives on.

    reduction: the transport: gloo, nccl or horovod with torch; grpc, nccl or horovod with
        TensorFlow; "auto" takes what fits the tensors' device, and the ring where some ranks have
        torch and others TensorFlow.
    framework: "torch" or "tensorflow", which has the transport; None goes by what is imported.
    check: whether the ranks compare what they are about to do before each call.
    """
    place = cluster.detect()
    speak_as(place.rank)
    chosen = _choice.framework(framework)
    if chosen is None:
        raise ConfigurationError(
            "A communicator stands on a framework's transport. Received: framework=None, and "
            "neither torch nor tensorflow imported. Import one first, or say framework='torch'."
        )
    everybody = ranks.frameworks(place, chosen, f"communicator({reduction!r}, check={check})")
    reduction = ranks.reduction(reduction, everybody)
    connect = _registry.reduction(chosen, reduction)
    stall.watch(place)
    wire = Loop() if place.alone else connect(place, reduction)
    return Communicator(wire, _registry.tensors(chosen), Members.all_of(place), check=check)
