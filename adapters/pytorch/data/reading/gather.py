"""The samples of a data set of tensors, gathered in one call for each tensor: torch reads them one
by one and stacks them. The same batch, without calls of Python's for each sample and tensor."""

from __future__ import annotations

from typing import Any, final

import torch
from torch.utils.data import Subset, TensorDataset, dataset, default_collate

from dream.adapters.pytorch.data.reading.private import tensors_are_stacked

_TORCHS = dataset.__file__
"""Where torch says how samples are read: a script may have put something else in its place."""


@final
class GatheredBatch(list[torch.Tensor]):
    """A batch that is collated already."""

    cut: slice | None = None


def gathered(data: Any, indices: list[int], collate: Any) -> GatheredBatch | None:
    """Return the batch of these samples; None where it has to be read sample by sample: of another
    data set than torch's own of tensors or a part of one, for a collate function of the script's,
    or by indices that torch has its own answer to."""
    if collate is not default_collate or not _read_by_torch(data):
        return None
    while type(data) is Subset:
        if not _are_numbers(indices, len(data.indices)):
            return None
        data, indices = data.dataset, [data.indices[index] for index in indices]
    if not all(map(_is_plain, data.tensors)) or not tensors_are_stacked():
        return None
    if not _are_numbers(indices, len(data)):
        return None
    rows = torch.tensor(indices, device="cpu")  # a script may have another default
    return GatheredBatch([tensor.index_select(0, rows) for tensor in data.tensors])


def _read_by_torch(data: Any) -> bool:
    kind = type(data)
    if kind is Subset:
        own = "__getitems__" not in vars(data) and _read_by_torch(data.dataset)
        return own and _is_torchs(kind, "__getitem__") and _is_torchs(kind, "__getitems__")
    own = kind is TensorDataset and not hasattr(data, "__getitems__")
    return own and _is_torchs(kind, "__getitem__")


def _is_torchs(kind: type, name: str) -> bool:
    code = getattr(vars(kind).get(name), "__code__", None)
    return code is not None and code.co_filename == _TORCHS


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
        and not tensor.is_quantized
    )
