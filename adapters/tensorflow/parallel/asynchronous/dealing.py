"""A dataset of global batches under `parameter_server`: its batches come as leases."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, final

import tensorflow as tf

from dream._errors import Unsupported
from dream.adapters.keras.asynchronous.feeds import WalkFeed, leased
from dream.adapters.keras.asynchronous.training import Training


@final
class Leased:
    """Iterated as often as one likes: the batches that this worker is dealt, an epoch each
    time."""

    def __init__(self, dataset: Any, training: Training) -> None:
        if not isinstance(dataset, tf.data.Dataset):
            raise Unsupported(
                "prepare takes Keras models, Keras optimizers and tf.data.Dataset of global "
                f"batches. Received: {type(dataset).__name__}. Make it one with "
                "tf.data.Dataset.from_tensor_slices(...).batch(size); fit takes the rest as it is."
            )
        self.whole = dataset
        self._training = training
        self._number = training.next_loader()
        self._passes = 0

    def __len__(self) -> int:
        return len(self.whole)

    def __iter__(self) -> Iterator[Any]:
        feed = WalkFeed(self.whole, int(self.whole.cardinality()))
        number, self._passes = self._passes, self._passes + 1
        for batch, _ in leased(self._training.work, self._number, number, feed):
            yield batch
