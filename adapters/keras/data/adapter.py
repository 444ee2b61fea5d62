"""Data as Keras's trainers take it: an adapter whose elements are one part's shares."""

from __future__ import annotations

from typing import Any, final

from dream.adapters.keras import private
from dream.adapters.keras.data.sources import Arrays, Batches
from dream.adapters.keras.engine import Engine


@final
class Dealt(private.DataAdapter):  # type: ignore[misc]  # Keras is untyped
    """A source dealt by an engine. Keras takes it for `x` as it is."""

    def __init__(self, engine: Engine, source: Arrays | Batches) -> None:
        self._source = source
        self._elements = (
            engine.batches(source) if isinstance(source, Batches) else engine.arrays(source)
        )

    def get_tf_dataset(self) -> Any:
        return self._elements

    def get_torch_dataloader(self) -> Any:
        return self._elements

    @property
    def fixed(self) -> bool:
        """Whether every process gives the samples of a pass in the same order."""
        return isinstance(self._source, Arrays) or self._source.fixed

    @property
    def num_batches(self) -> int | None:
        if isinstance(self._source, Batches):
            return self._source.adapter.num_batches  # type: ignore[no-any-return]
        return -(-self._source.samples // self._source.batch_size)

    @property
    def batch_size(self) -> int | None:
        if isinstance(self._source, Batches):
            return self._source.adapter.batch_size  # type: ignore[no-any-return]
        return self._source.batch_size

    def on_epoch_begin(self) -> None:
        if isinstance(self._source, Batches):
            if self._source.ordered is not None:
                self._source.ordered.begin_pass()
            self._source.adapter.on_epoch_begin()

    def on_epoch_end(self) -> None:
        if isinstance(self._source, Batches):
            self._source.adapter.on_epoch_end()
