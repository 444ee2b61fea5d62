"""A rank that does what the test asks for: PORT KEY FRAMEWORK, on the command line."""

from __future__ import annotations

import os
import sys
import traceback
from multiprocessing.connection import Client
from typing import Any

import numpy as np
from calls import Asked, given, numpy_dtype, parts

import dream


class Torch:
    name = "torch"

    def native(self, array: np.ndarray) -> Any:
        import torch

        if array.dtype == numpy_dtype("bfloat16") and array.dtype != np.float32:
            return torch.from_numpy(array.astype(np.float32)).to(torch.bfloat16)
        return torch.from_numpy(array.copy()).reshape(array.shape)

    def writable(self, array: np.ndarray) -> Any:
        return self.native(array)

    def numpy(self, x: Any) -> np.ndarray:
        import torch

        if x.dtype == torch.bfloat16:
            return x.float().numpy().astype(numpy_dtype("bfloat16"))
        return x.numpy()

    def strided(self, x: Any) -> Any:
        import torch

        return torch.stack([x, x], -1)[..., 0]

    def is_native(self, x: Any) -> bool:
        import torch

        return isinstance(x, torch.Tensor)


class TensorFlow:
    name = "tensorflow"

    def native(self, array: np.ndarray) -> Any:
        import tensorflow as tf

        return tf.constant(array)

    def writable(self, array: np.ndarray) -> Any:
        import tensorflow as tf

        return tf.Variable(array)

    def numpy(self, x: Any) -> np.ndarray:
        return np.asarray(x.numpy())

    def strided(self, x: Any) -> Any:
        return x  # TensorFlow's tensors are never strided

    def is_native(self, x: Any) -> bool:
        import tensorflow as tf

        return tf.is_tensor(x)


class Rank:
    """One rank's communicators, by reduction."""

    def __init__(self, side: Torch | TensorFlow) -> None:
        self.side = side
        self.made: dict[tuple[str, bool], Any] = {}

    def communicator(self, reduction: str, *, check: bool = True) -> Any:
        if (reduction, check) not in self.made:
            self.made[reduction, check] = dream.communicator(
                reduction, framework=self.side.name, check=check
            )
        return self.made[reduction, check]

    def call(self, reduction: str, asked: Asked) -> Any:
        """The result as NumPy, and whether it is of the caller's kind and no input changed."""
        c = self.communicator(reduction, check=asked.check)
        dealing = asked.operation in ("scatter", "all_to_all")
        source = parts(asked, c.rank, c.world_size) if dealing else [given(asked, c.rank)]
        inputs = [self._input(asked, array) for array in source]
        act = getattr(self, f"_{asked.operation}", self._plainly)
        if asked.where == "graph":
            result = self._in_graph(act, c, asked, inputs)
        else:
            result = act(c, asked, inputs)
        unchanged = all(
            np.array_equal(self._numpy(x), array) for x, array in zip(inputs, source, strict=True)
        )
        if result is None:
            return None, True, unchanged
        kind = self.side.is_native(result) if asked.kind == "native" else isinstance(
            result, (np.ndarray, np.generic)
        )  # fmt: skip
        return self._numpy(result), kind, unchanged

    def _in_graph(self, act: Any, c: Any, asked: Asked, inputs: list[Any]) -> Any:
        """Traced with open rows, as a user's input_signature would have it."""
        import tensorflow as tf

        specs = [
            tf.TensorSpec([None, *x.shape[1:]] if x.shape.rank else [], x.dtype) for x in inputs
        ]
        function = tf.function(lambda *xs: act(c, asked, list(xs)), input_signature=specs)
        return function(*inputs)

    def _input(self, asked: Asked, array: np.ndarray) -> Any:
        if asked.kind == "numpy":
            return np.stack([array, array], -1)[..., 0] if asked.layout == "strided" else array
        x = self.side.native(array)
        return self.side.strided(x) if asked.layout == "strided" else x

    def _numpy(self, x: Any) -> np.ndarray:
        return self.side.numpy(x) if self.side.is_native(x) else np.asarray(x)

    @staticmethod
    def _plainly(c: Any, asked: Asked, inputs: list[Any]) -> Any:
        words = dict(asked.options)
        if asked.op is not None:
            words["op"] = asked.op
        if asked.operation in ("reduce", "broadcast", "gather"):
            words["root"] = asked.root
        return getattr(c, asked.operation)(inputs[0], **words)

    @staticmethod
    def _scatter(c: Any, asked: Asked, inputs: list[Any]) -> Any:
        words: dict[str, Any] = {"root": asked.root}
        if asked.where == "graph" or asked.kind == "numpy":
            words["like"] = inputs[c.rank]
        return c.scatter(inputs if c.rank == asked.root else None, **words)

    def _all_to_all(self, c: Any, asked: Asked, inputs: list[Any]) -> Any:
        came = c.all_to_all(inputs)
        if asked.where == "graph":
            import tensorflow as tf

            return tf.concat(came, 0)
        whole = np.concatenate([np.atleast_1d(self._numpy(x)) for x in came])
        return whole if asked.kind == "numpy" else self.side.native(whole)

    @staticmethod
    def _send(c: Any, asked: Asked, inputs: list[Any]) -> Any:
        """Round the ring, all at once."""
        sent = c.isend(inputs[0], to=(c.rank + 1) % c.world_size)
        like = inputs[0] if asked.kind == "numpy" else None
        came = c.receive((c.rank - 1) % c.world_size, like=like)
        sent.wait()
        return came


def main() -> None:
    port, key, framework = int(sys.argv[1]), sys.argv[2], sys.argv[3]
    frameworks = framework.split(",")
    place = int(os.environ["RANK"])
    side = {"torch": Torch, "tensorflow": TensorFlow}[frameworks[place % len(frameworks)]]()
    rank = Rank(side)
    with Client(("127.0.0.1", port), authkey=bytes.fromhex(key)) as parent:
        parent.send(place)
        while (order := parent.recv()) is not None:
            name, arguments = order
            try:
                outcome: Any = ("gave", run(rank, name, arguments))
            except Exception as error:
                kinds = [kind.__name__ for kind in type(error).__mro__]
                outcome = ("raised", (kinds, str(error), traceback.format_exc()))
            parent.send(outcome)


def run(rank: Rank, name: str, arguments: tuple[Any, ...]) -> Any:
    if name == "call":
        return rank.call(*arguments)
    import scenes

    return getattr(scenes, name)(rank, *arguments)


if __name__ == "__main__":
    main()
