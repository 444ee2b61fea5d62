"""Keras's TensorFlow backend in a process with several devices, alone or one of several ranks."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from typing import Any, final

import keras
import tensorflow as tf

from dream._errors import ConfigurationError, Unsupported
from dream.adapters.keras import hooks, private
from dream.adapters.keras.data.share import BatchShare
from dream.adapters.keras.data.sources import Arrays, Batches
from dream.adapters.keras.forward import unweighed
from dream.adapters.tensorflow.engine import TensorFlowEngine, common
from dream.adapters.tensorflow.keras import data, slices
from dream.adapters.tensorflow.keras import private as private_tensorflow
from dream.adapters.tensorflow.keras.draws import GraphRows, SeedOnDemand, drawing
from dream.adapters.tensorflow.private import read_as_number
from dream.adapters.tensorflow.randomness import TensorFlowGenerators
from dream.adapters.tensorflow.tensors import TensorFlowTensors
from dream.adapters.tensorflow.tracing import as_it_stands
from dream.collectives import Communicator
from dream.collectives.composed import Pack
from dream.collectives.tensors import CARRIED
from dream.data.partition import Divided, Division


@final
class MirroredEngine(TensorFlowEngine):
    """MirroredStrategy: every device takes the same step on its share. Several ranks have equally
    many devices each, whose sums are then added up over the ranks."""

    pooled = whole_loops = True
    resyncs = None

    def __init__(
        self, distribution: tf.distribute.Strategy, communicator: Communicator, seed: int | None
    ) -> None:
        self.communicator = self.readers = communicator
        self.generators = TensorFlowGenerators()
        self.rank = communicator.rank
        self._devices = distribution.num_replicas_in_sync
        self.parts = communicator.world_size * self._devices
        self.divided = Divided(Division(self.parts))
        self.seed = seed
        self._adding = communicator.unchecked()  # the same on every rank, at every step
        self._distribution = distribution
        self._shared_seed: Any = None

    @property
    def several_processes(self) -> bool:
        return self.communicator.world_size > 1

    @property
    def here(self) -> range:
        return range(self.rank * self._devices, (self.rank + 1) * self._devices)

    def total(self, tensors: Sequence[Any]) -> list[Any]:
        return slices.total(tensors, self._added, self.here[0] + _replica(), self.parts)

    def _added(self, values: list[Any]) -> list[Any]:
        pack = Pack.of(TensorFlowTensors(), values, [CARRIED[v.dtype.name] for v in values])
        try:
            return pack.unpack(self._summed(pack.buffers))
        except RuntimeError as error:
            if "merge_call" not in str(error):
                raise
            raise Unsupported(
                "The devices of one process cannot meet inside a tf.cond, a tf.while_loop or a "
                f"tf.function of a step's own. Received: replicas={self.parts} in one process, of "
                "which such a part of a step needs the sum, as to apply gradients. Apply them "
                "outside of it (gradient_accumulation_steps= of an optimizer counts by itself), or "
                "start several processes with dream run -n."
            ) from error

    def _summed(self, buffers: Sequence[Any]) -> Sequence[Any]:
        replica = tf.distribute.get_replica_context()
        if self.several_processes:
            summed: Sequence[Any] = replica.merge_call(self._over_ranks, args=(buffers,))
            return summed
        return [replica.all_reduce(tf.distribute.ReduceOp.SUM, buffer) for buffer in buffers]

    def _over_ranks(self, distribution: tf.distribute.Strategy, buffers: Sequence[Any]) -> Any:
        """Add up the devices' buffers, and then, once in a process, the ranks'."""
        sums = [distribution.reduce(tf.distribute.ReduceOp.SUM, b, axis=None) for b in buffers]
        return self._adding.all_reduce(sums, "sum")

    def one_hot(self, share: BatchShare) -> list[Any]:
        if not self.several_processes or share.digest is None:
            return []  # one process reads one source
        return [tf.one_hot(self.here[_replica()], self.parts) * share.digest]

    def held_here(self, whole: Any) -> Any:
        return tf.zeros_like(whole) if _replica() else whole

    def arrays(self, source: Arrays) -> Any:
        shares = data.of_arrays(source, self.here, self.division, even=self._even)
        return self._dealt(source, shares)

    def batches(self, source: Batches) -> Any:
        digest_of = data.own_digest if self.several_processes else data.no_digest
        shares = data.of_batches(source, self.here, self.division, digest_of, even=self._even)
        return self._dealt(source, shares)

    def placed(self, elements: Sequence[Any]) -> Any:
        self._share_seed()
        return self._distribution.experimental_distribute_values_from_function(
            lambda context: tf.nest.map_structure(
                tf.convert_to_tensor, elements[context.replica_id_in_sync_group]
            )
        )

    def mine(self, elements: Sequence[Any]) -> Any:
        return elements[_replica()]

    def _dealt(self, source: Arrays | Batches, elements: Callable[[int], tf.data.Dataset]) -> Any:
        self._share_seed()
        return data.Dealt(source, elements, self._placed if self._ahead else lambda found: found)

    def _share_seed(self) -> None:
        """Have the devices' steps, which are traced in other threads, draw from this one's."""
        self._shared_seed = private.shared_seed()
        if self._shared_seed is None:
            self._shared_seed = SeedOnDemand(self.creating)
            private.share_seed(self._shared_seed)

    @property
    def _ahead(self) -> bool:
        """Whether shares are brought to the devices before their step. On CPUs they are there, and
        TensorFlow's iterator over devices costs more than the step of a small model."""
        return any("CPU" not in device for device in self._distribution.extended.worker_devices)

    @property
    def _even(self) -> bool:
        """Whether shares may be without numbers: by these what TensorFlow's iterator over devices
        fills up weighs nothing."""
        return not self._ahead

    def _placed(self, dataset: tf.data.Dataset) -> Any:
        """Place elements by turns on the devices, as they come."""
        by_turns = dataset.flat_map(as_it_stands(data.by_turns))
        return self._distribution.distribute_datasets_from_function(lambda _: by_turns)

    @contextmanager
    def creating(self) -> Iterator[None]:
        with ExitStack() as open_scope:
            open_scope.enter_context(self._distribution.scope())
            try:
                yield
            finally:
                if tf.distribute.get_strategy() is not self._distribution:
                    open_scope.pop_all()  # keras.backend.clear_session has ended it

    def rehearse(self, step: Callable[[Any], None], batch: Any) -> None:
        self._share_seed()

        def sharing(given: Any) -> None:
            private.share_seed(self._shared_seed)
            step(given)

        super().rehearse(sharing, batch)

    def stepping(self) -> AbstractContextManager[Any]:
        return hooks.unscaled_losses()

    def outside(self) -> AbstractContextManager[Any]:
        scope: AbstractContextManager[Any] = tf.init_scope()
        return scope

    def _run(self, step: Callable[[Any], None]) -> Callable[[Any], Any]:
        return lambda batch: self._distribution.run(step, args=(batch,))

    def common(self, gradients: Sequence[Any], received: str) -> list[Any]:
        """One loop drives all devices, where it is not inside TensorFlow's own strategy.run."""
        if not tf.distribute.in_cross_replica_context():
            raise ConfigurationError(unweighed(received))
        if self.several_processes:
            ranks = self.communicator.world_size
            return common(gradients, lambda g: self._adding.all_reduce(g, "sum"), ranks, received)
        return list(gradients)

    def everywhere(self, update: Callable[[], None]) -> None:
        self._distribution.run(update)

    def on_each(self, variable: Any) -> Sequence[Any]:
        held = variable.value if isinstance(variable, keras.Variable) else variable
        copies: Sequence[Any] = self._distribution.experimental_local_results(held)
        return copies

    def alone(self, model: Any, predict: Callable[[], Any]) -> Any:
        self._share_seed()

        def sharing() -> Any:
            private.share_seed(self._shared_seed)
            return predict()

        with private_tensorflow.under_no_strategy(model):
            return self.apart(sharing)

    def adopt_optimizer(self, optimizer: Any) -> None:
        self._check_made_here(optimizer)
        private_tensorflow.update_own_copy(optimizer)
        for number in private.numbers_of(optimizer):
            read_as_number(number.value)

    def adopt_model(self, model: Any) -> None:
        self._check_made_here(model)
        private_tensorflow.skip_symbolic_build(model)

    def _check_made_here(self, item: Any) -> None:
        if private_tensorflow.strategy_of(item) is not self._distribution:
            raise ConfigurationError(
                "The variables of what is made outside the block lie on one device. Received: "
                f"{type(item).__name__} {item.name!r}, replicas={self.parts} in one process. Make "
                "it inside the block, which keras.backend.clear_session ends here, or start "
                "several processes with dream run -n."
            )

    def replica(self) -> int:
        return _replica()

    def drawing(self, share: BatchShare) -> AbstractContextManager[Any]:
        if self._shared_seed is not None:
            private.share_seed(self._shared_seed)
        return drawing(GraphRows(share, tf.constant(self.here[_replica()]), self.parts))


def _replica() -> int:
    """Which of this process's devices takes the step."""
    place = tf.distribute.get_replica_context().replica_id_in_sync_group
    return int(tf.get_static_value(place))
