"""Where the parts of models are: in this process, or on several ranks."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any, final

import tensorflow as tf

from dream._adapter import Plan
from dream._mesh import Mesh
from dream._topology import Topology
from dream.adapters.tensorflow import choosing, runtime
from dream.adapters.tensorflow.dealing import Dealt, share_cut
from dream.adapters.tensorflow.parallel.split import choice
from dream.adapters.tensorflow.parallel.split.across import Across, Ranks
from dream.adapters.tensorflow.parallel.split.across_fit import AcrossRunner
from dream.adapters.tensorflow.parallel.split.choice import Choice
from dream.adapters.tensorflow.parallel.split.keras_fit import Runner
from dream.adapters.tensorflow.parallel.split.parted import Parted
from dream.adapters.tensorflow.parallel.split.parted_fit import PartedRunner
from dream.adapters.tensorflow.parallel.split.parted_step import Stepping
from dream.adapters.tensorflow.parallel.split.parts import Parts
from dream.adapters.tensorflow.parallel.split.shares import Shares
from dream.adapters.tensorflow.parallel.split.together import Together
from dream.adapters.tensorflow.tensors import TensorFlowTensors
from dream.collectives import Communicator, Loop, Members
from dream.update.update import Knobs

Steppings = Callable[[Any], Stepping]


class Room(ABC):
    """The devices that parts go to."""

    topology: Topology
    communicator: Communicator
    axes: Mesh

    @abstractmethod
    def parts(self, model: Any, way: Choice) -> Parts: ...

    @abstractmethod
    def runner(self, steppings: Steppings, knobs: Knobs) -> Runner: ...

    @abstractmethod
    def deal(self, dataset: Any) -> Dealt:
        """A dataset of global batches, of which each row of the mesh is given its share."""

    @abstractmethod
    def whole(self, batch: tuple[Any, ...]) -> tuple[Any, ...]:
        """The global batch of which this is a share. Every rank calls it, before each step."""

    @abstractmethod
    def predictor(self, parts: Any) -> Callable[[Any], Any]:
        """From inputs the model's output in evaluation."""

    @abstractmethod
    def compiled(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """A function that calls a predictor."""


@final
class Here(Room):
    """The devices of this process."""

    def __init__(self, plan: Plan) -> None:
        devices = runtime.replicas(plan.devices)
        self.axes = choice.fit(plan.options, plan.spec.name, len(devices))
        size = self.axes.model
        self._rows = [devices[row * size : (row + 1) * size] for row in range(self.axes.data)]
        self.topology = Topology.of(plan.cluster, num_replicas=len(devices), device=devices[0])
        self.communicator = Communicator(Loop(), TensorFlowTensors(), Members.all_of(plan.cluster))

    def parts(self, model: Any, way: Choice) -> Parts:
        return Parted(model, way.cut(model, self.communicator), self._rows, way.kind)

    def runner(self, steppings: Steppings, knobs: Knobs) -> Runner:
        return PartedRunner(steppings, knobs)

    def deal(self, dataset: Any) -> Dealt:
        return Dealt(dataset, share_cut(0, 1), self.communicator)

    def whole(self, batch: tuple[Any, ...]) -> tuple[Any, ...]:
        return batch

    def predictor(self, parts: Any) -> Callable[[Any], Any]:
        return parts.predict  # type: ignore[no-any-return]

    def compiled(self, function: Callable[..., Any]) -> Callable[..., Any]:
        return tf.function(function)  # type: ignore[no-any-return]


@final
class OverRanks(Room):
    """One device of each rank, row by row."""

    def __init__(self, plan: Plan) -> None:
        device = runtime.local_device(plan.cluster, plan.devices)
        self.axes = axes = choice.fit(plan.options, plan.spec.name, plan.cluster.world_size)
        self.topology = Topology.of(plan.cluster, num_replicas=axes.data, device=device)
        everyone = Communicator(
            choosing.connect(plan.cluster, "auto"), TensorFlowTensors(),
            Members.all_of(plan.cluster),
        )  # fmt: skip
        self.communicator = everyone
        copies = [everyone.group(axes.copy_of(row * axes.model)) for row in range(axes.data)]
        columns = [everyone.group(axes.twins_of(place)) for place in range(axes.model)]
        copy, twins = next(filter(None, copies)), next(filter(None, columns))
        talk = everyone.group(range(everyone.world_size))
        assert talk is not None
        together = Together(everyone)
        self._ranks = Ranks(everyone, talk.unchecked(), copy, twins, axes, device, together)
        self._shares = Shares(everyone, twins)

    def parts(self, model: Any, way: Choice) -> Parts:
        return Across(model, way.cut(model, self.communicator), way.kind, self._ranks)

    def runner(self, steppings: Steppings, knobs: Knobs) -> Runner:
        return AcrossRunner(steppings, self._ranks, knobs)

    def deal(self, dataset: Any) -> Dealt:
        return self._shares.deal(dataset)

    def whole(self, batch: tuple[Any, ...]) -> tuple[Any, ...]:
        self._ranks.together.step("train")
        return self._shares.whole(batch)

    def predictor(self, parts: Any) -> Callable[[Any], Any]:
        return lambda inputs: parts.forward(inputs)[0]

    def compiled(self, function: Callable[..., Any]) -> Callable[..., Any]:
        return function


def room(plan: Plan) -> Room:
    return Here(plan) if plan.cluster.alone else OverRanks(plan)
