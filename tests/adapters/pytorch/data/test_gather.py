"""A data set of tensors is gathered, where that is what torch's own reading would give."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.utils.data import Dataset, Subset, TensorDataset, default_collate
from torch.utils.data._utils.collate import default_collate_fn_map

from dream.adapters.pytorch.data.reading.gather import gathered

X, Y = torch.arange(60.0).reshape(20, 3), torch.arange(20)
DATA = TensorDataset(X, Y)
PART = Subset(Subset(DATA, [19, 3, 5, 7, 8, 2]), [4, 0, 2])


class Doubled(TensorDataset):
    def __getitem__(self, index: Any) -> Any:
        return tuple(2 * x for x in super().__getitem__(index))


@pytest.mark.parametrize("data", [DATA, PART, TensorDataset(Y)])
def test_what_is_gathered_is_what_is_read(data: Dataset[Any]) -> None:
    found = gathered(data, [2, 0, 1, 1], default_collate)
    read = default_collate([data[index] for index in [2, 0, 1, 1]])
    assert found is not None
    assert type(read) is list
    assert len(found) == len(read)
    for one, other in zip(found, read, strict=True):
        assert torch.equal(one, other)
        assert one.stride() == other.stride()


def test_what_a_script_reads_in_its_own_way_is_read() -> None:
    turned = TensorDataset(torch.ones(3, 20).t())
    hanging = TensorDataset(torch.ones(20, 3, requires_grad=True))
    for data in (Doubled(X, Y), Subset(Doubled(X, Y), [1, 2]), turned, hanging, [1, 2]):
        assert gathered(data, [0, 1], default_collate) is None
    assert gathered(DATA, [0, 1], lambda samples: samples) is None
    for indices in ([-1, 0], [0, 20], [True, False], [torch.tensor(1)]):
        assert gathered(DATA, indices, default_collate) is None
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(TensorDataset, "__getitem__", lambda _, index: index)
        assert gathered(PART, [0, 1], default_collate) is None
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(default_collate_fn_map, torch.Tensor, lambda batch, **_: batch)
        assert gathered(DATA, [0, 1], default_collate) is None
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(default_collate_fn_map, tuple, lambda batch, **_: batch)
        assert gathered(DATA, [0, 1], default_collate) is None
    many = TensorDataset(X, Y)
    vars(many)["__getitems__"] = list
    assert gathered(many, [0, 1], default_collate) is None
    assert gathered(PART, [0, 1], default_collate) is not None
