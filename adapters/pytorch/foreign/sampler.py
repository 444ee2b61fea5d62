"""Samplers that divide the data among the ranks by themselves, in the block: the global order that
they have in common is dealt, unpadded."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any, final

from torch.utils.data import BatchSampler, DataLoader, DistributedSampler, Sampler

from dream._errors import Unsupported
from dream._log import logger
from dream.collectives import Communicator


def dividing(loader: DataLoader[Any]) -> Any | None:
    """Return the loader's sampler that takes a rank's part of the data; None where there is none.
    It has `num_replicas` and `rank`, as torch's own has."""
    for sampler in (loader.sampler, getattr(loader.batch_sampler, "sampler", None)):
        replicas = getattr(sampler, "num_replicas", None)
        if isinstance(replicas, int) and hasattr(sampler, "rank") and replicas > 1:
            return sampler
    return None


def global_batches(loader: DataLoader[Any], sampler: Any, ranks: Communicator) -> BatchSampler:
    """The batches of all ranks together, of which each takes its part. The loader's batch size is
    a rank's own."""
    own = loader.batch_sampler
    if type(own) is not BatchSampler or sampler.num_replicas != ranks.world_size:
        raise Unsupported(
            "This loader divides the data among the ranks in its own way. Received: "
            f"{type(own).__name__} over "
            f"{type(sampler).__name__}(num_replicas={sampler.num_replicas}), "
            f"ranks={ranks.world_size}. Remove the sampler and pass shuffle=True: dream deals "
            "every global batch to the ranks."
        )
    size = own.batch_size * ranks.world_size
    logger.info(
        "%s divides the data, so batch_size=%d is a rank's own: the global batch is %d x %d = %d",
        type(sampler).__name__, own.batch_size, ranks.world_size, own.batch_size, size,
    )  # fmt: skip
    return BatchSampler(WholeOrder(sampler), size, own.drop_last)


@final
class WholeOrder(Sampler[int]):
    """The order that the ranks' samplers are cut from: that of one rank, all samples once."""

    def __init__(self, sampler: Any) -> None:
        self._sampler = sampler
        self._samples = len(sampler.dataset) if hasattr(sampler, "dataset") else 0

    def __len__(self) -> int:
        return self._samples

    def __iter__(self) -> Iterator[int]:
        whole = copy.copy(self._sampler)  # on each pass: `set_epoch` is called on the original
        whole.num_replicas, whole.rank = 1, 0
        for size in ("num_samples", "total_size"):
            if hasattr(whole, size):
                setattr(whole, size, self._samples)
        if type(whole) is DistributedSampler:
            return iter(whole)
        order = list(whole)
        if sorted(order) != list(range(self._samples)):
            raise Unsupported(
                "This sampler does not take every sample once, so its part of a rank cannot be "
                f"dealt. Received: {type(self._sampler).__name__}, {len(order)} indices of "
                f"{self._samples} samples. Leave its num_replicas and rank at 1 and 0."
            )
        return iter(order)
