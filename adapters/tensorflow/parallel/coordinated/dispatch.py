"""Functions handed out to workers by TensorFlow's coordinator, and what they give."""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, final

import numpy as np
import tensorflow as tf
from numpy.typing import NDArray

from dream._errors import DreamError, Unsupported
from dream.adapters.tensorflow import private
from dream.adapters.tensorflow.tracing import any_length
from dream.parameter_server.coordinated import Attendance, Tasks

_IN_FLIGHT = 64
"""Functions a worker that may wait for it: each holds its batch in the chief's memory."""

_LOOK_SECONDS = 1.0


@final
class Scheduled:
    """What a function will have given, once it is read."""

    def __init__(self, remote: Any, read: Callable[[Any], Any]) -> None:
        self.remote, self._read = remote, read

    def numpy(self) -> Any:
        return self._read(self)

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> NDArray[Any]:
        del copy
        return np.asarray(self._read(self), dtype)

    def __float__(self) -> float:
        return float(self._read(self))

    def __format__(self, spec: str) -> str:
        return format(self._read(self), spec)

    def __repr__(self) -> str:
        return "<a value on a worker; float(value) or strategy.fetch(value) reads it>"


@final
class Dispatcher:
    """Hands out, waits, and tells whose fault it is where that is in vain."""

    def __init__(
        self,
        tasks: Tasks,
        attendance: Attendance,
        strategy: tf.distribute.ParameterServerStrategy,
    ) -> None:
        self._tasks, self._attendance, self._strategy = tasks, attendance, strategy
        self._coordinator = tf.distribute.coordinator.ClusterCoordinator(strategy)
        self._compiled: dict[Any, Any] = {}
        self._waiting = 0

    def compiled(self, function: Callable[..., Any]) -> Any:
        """Return the function as one of TensorFlow's that runs whole on a worker; made once."""
        if function not in self._compiled:
            run = self._strategy.run

            def on_a_worker(*args: Any, **kwargs: Any) -> Any:
                return run(function, args=args, kwargs=kwargs)

            self._compiled[function] = tf.function(
                on_a_worker, reduce_retracing=True, jit_compile=False
            )
        return self._compiled[function]

    def trace(self, function: Callable[..., Any], batch: Sequence[Any]) -> None:
        """Trace a function for batches like this one, of any length: the short last one of an epoch
        needs no other."""
        with private.scheduling(self._strategy):
            self.compiled(function).get_concrete_function(*any_length(batch))

    def schedule(
        self, function: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]
    ) -> Scheduled:
        if self._waiting >= _IN_FLIGHT * self._tasks.workers:
            self.join()
        self._waiting += 1
        given = tf.nest.map_structure(_remote, (tuple(args), dict(kwargs)))
        compiled = self.compiled(function)
        with self._explained():
            remote = self._coordinator.schedule(compiled, *given)
        return Scheduled(remote, self.fetch)

    def join(self) -> None:
        with self._explained():
            if not self._coordinator.done():
                self._wait(self._coordinator.join)
            self._coordinator.join()  # raises what went wrong before
        self._waiting = 0

    def fetch(self, value: Any) -> Any:
        remote = tf.nest.map_structure(_remote, value)
        with self._explained():
            return self._wait(lambda: self._coordinator.fetch(remote))

    def per_worker(self, make: Callable[[], Any]) -> Any:
        """Return an iterator over a dataset that each worker makes for itself."""
        with self._explained():
            return iter(self._coordinator.create_per_worker_dataset(make))

    def _wait(self, call: Callable[[], Any]) -> Any:
        """Return what a call gives that TensorFlow may not come back from."""
        done = threading.Event()
        given: list[Any] = []
        raised: list[BaseException] = []

        def wait() -> None:
            try:
                given.append(call())
            except BaseException as error:
                raised.append(error)
            finally:
                done.set()

        threading.Thread(target=wait, name="dream-coordinator", daemon=True).start()
        while not done.wait(_LOOK_SECONDS):
            self._attendance.check()
        if raised:
            raise raised[0]
        return given[0]

    @contextmanager
    def _explained(self) -> Iterator[None]:
        """Name the server that an error comes of; and what Keras cannot do with shards."""
        try:
            yield
        except DreamError:
            raise
        except AttributeError as error:
            if "ShardedVariable" not in str(error):
                raise
            raise Unsupported(
                "Keras cannot take gradients of a variable that is cut over the servers. Received: "
                "a function of the script's own that does, with partitioner=. Use "
                "strategy.train_step, or remove partitioner."
            ) from error
        except Exception as error:
            lost = self._lost(error)
            if lost is None:
                raise
            raise self._tasks.server_lost(lost) from error

    def _lost(self, error: Exception) -> int | None:
        """Which server an error is for want of; None where it is none's fault."""
        first = getattr(error, "original_exception", error)
        gone = (tf.errors.UnavailableError, tf.errors.AbortedError, tf.errors.CancelledError)
        if not isinstance(first, gone):
            return None
        named = re.findall(r"/job:ps/replica:0/task:(\d+)", str(first))
        return int(named[0]) if named else None


def _remote(value: Any) -> Any:
    return value.remote if isinstance(value, Scheduled) else value
