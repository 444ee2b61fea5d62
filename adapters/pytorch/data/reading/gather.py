"""The samples of a data set of tensors, gathered in one call for each tensor: torch reads them one
by one and stacks them. The same batch, without calls of Python's for each sample and tensor."""

from __future__ import annotations

from typing import Any, final

import torch
from torch.utils.data import Subset, TensorDataset, default_collate

from dream.adapters.pytorch.data.reading.private import tensors_are_stacked

_NAMES = ("__getitem__", "__getitems__")
_OWN = {kind: [vars(kind).get(name) for name in _NAMES] for kind in (TensorDataset, Subset)}
"""How torch reads samples: a script may have put something else in their place."""


@final
class Gathered(list[torch.Tensor]):
    """A batch that is collated already."""

    cut: slice | None = None


def gathered(dataset: Any, indices: list[int], collate: Any) -> Gathered | None:
    """Return the batch of these samples; None where it has to be read sample by sample: of another
    data set than torch's own of tensors or a part of one, for a collate function of the script's,
    or by indices that torch has its own answer to."""
    if collate is not default_collate or not _read_by_torch(dataset):
        return None
    while type(dataset) is Subset:
        if not _are_numbers(indices, len(dataset.indices)):
            return None
        dataset, indices = dataset.dataset, [dataset.indices[index] for index in indices]
    if type(dataset) is not TensorDataset or not all(map(_is_plain, dataset.tensors)):
        return None
    if not _are_numbers(indices, len(dataset)) or not tensors_are_stacked():
        return None
    rows = torch.tensor(indices)
    return Gathered([tensor.index_select(0, rows) for tensor in dataset.tensors])


def _read_by_torch(dataset: Any) -> bool:
    kind = type(dataset)
    if kind is Subset and not _read_by_torch(dataset.dataset):
        return False
    own = _OWN.get(kind)
    return own is not None and all(vars(kind).get(n) is x for n, x in zip(_NAMES, own, strict=True))


def _are_numbers(indices: list[int], length: int) -> bool:
    return {*map(type, indices)} == {int} and min(indices) >= 0 and max(indices) < length


def _is_plain(tensor: Any) -> bool:
    """Whether rows of it that are picked lie as rows that are stacked, and hang on nothing else."""
    return (
        type(tensor) is torch.Tensor
        and tensor.layout == torch.strided
        and tensor.is_contiguous()
        and tensor.device.type == "cpu"
        and not tensor.requires_grad
    )
