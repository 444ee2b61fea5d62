"""What is drawn where a model is tried on rows of a batch: alike for all rows, and drawn again
afterwards."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any, final

import keras
from keras import ops

from dream.adapters.keras import private
from dream.adapters.keras.engine import Engine
from dream.adapters.keras.randomness.draws import ShareRows
from dream.adapters.keras.randomness.start import Generators
from dream.data import generators


@final
class OneRow(ShareRows):
    """Draws one row, which all samples have: so parts draw what the whole does."""

    def __init__(self, note: Callable[[Sequence[Any]], None], generators: Generators) -> None:
        """note: told of each shape. generators: the framework's."""
        self._note, self._generators = note, generators

    def aside(self) -> AbstractContextManager[Any]:
        return self._generators.aside()

    def dims(self, shape: Any) -> Sequence[Any]:
        if not hasattr(shape, "dtype"):
            return list(shape)
        if len(shape.shape) == 1 and "int" in keras.backend.standardize_dtype(shape.dtype):
            return [int(size) for size in ops.convert_to_numpy(shape)]
        return list(shape.shape)

    def counts(self, dims: Sequence[Any]) -> bool:
        self._note(dims)
        return True

    def whole(self, length: Any) -> Any:
        return 1

    def take(self, tensor: Any, length: Any) -> Any:
        return ops.repeat(tensor, int(length), axis=0)

    def spread(self, tensor: Any, length: Any) -> Any:
        return ops.ones_like(tensor[:1])

    def dropout(
        self, own: Callable[..., Any], inputs: Any, rate: Any, dims: Sequence[Any] | None, seed: Any
    ) -> Any:
        inner = ops.shape(inputs)[1:] if dims is None else dims[1:]
        return inputs * own(ops.ones((1, *inner), inputs.dtype), rate, None, seed)


@contextmanager
def generators_kept(engine: Engine) -> Iterator[None]:
    """Inside, what is drawn is drawn again afterwards."""
    of_python, of_numpy = generators.python_state(), generators.numpy_state()
    own, shared = engine.generators.now(), private.shared_seed()
    try:
        yield
    finally:
        generators.go_on_in_python(of_python)
        generators.go_on_in_numpy(of_numpy)
        engine.generators.go_on_from(own)
        private.share_seed(shared)
