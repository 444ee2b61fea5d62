"""The ring under torch: its communicator against NumPy, and DDP's buckets in it against one
device. The ring under TensorFlow is a cell of tests/tf_adapter."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import pytest
import ring_cases
import torch

import dream

RANKS = (2, pytest.param(3, marks=pytest.mark.exhaustive))
ranks_each = pytest.mark.parametrize("ranks", RANKS)


@cache
def _results(ranks: int) -> list[dict[str, Any]] | dream.DreamError:
    try:
        return dream.launch(ring_cases.run, n=ranks, framework="torch", timeout=240)
    except dream.DreamError as error:
        return error


def results(ranks: int) -> list[dict[str, Any]]:
    found = _results(ranks)
    if isinstance(found, dream.DreamError):
        raise found
    return found


@ranks_each
@pytest.mark.parametrize("dtype", ring_cases.DTYPES)
@pytest.mark.parametrize("op", ring_cases.OPS)
def test_all_reduce_is_numpys(op: str, dtype: str, ranks: int) -> None:
    for rank in results(ranks):
        result = rank[f"{op} {dtype}"]
        if (op == "mean" and "float" not in dtype) or (op == "sum" and dtype == "bool"):
            assert result.startswith(f"Unsupported: There is no {op} of this dtype"), result
            continue
        stacked = torch.stack([ring_cases.mine(dtype, r) for r in range(ranks)])
        kind = getattr(torch, dtype)
        values = stacked.double().numpy() if dtype != "bool" else stacked.numpy()
        combine = {"sum": np.sum, "mean": np.mean, "min": np.min, "max": np.max}[op]
        assert result.dtype == kind
        tolerance = 1e-2 if "16" in dtype else 1e-6
        torch.testing.assert_close(
            result, torch.from_numpy(combine(values, axis=0)).to(kind), rtol=tolerance, atol=0
        )


@ranks_each
def test_lists_roots_and_objects(ranks: int) -> None:
    total = sum(range(ranks))
    for rank in results(ranks):
        wanted = [np.full((2, 2), total), np.float32(total), np.full(3, total), np.ones(0)]
        for value, want in zip(rank["list"], wanted, strict=True):
            np.testing.assert_array_equal(value, want)
        assert torch.equal(rank["broadcast"][0], ring_cases.mine("bool", 0))
        assert torch.equal(rank["broadcast"][1], ring_cases.mine("float64", 1))
        assert rank["gathered"] == [{"rank": r, "text": "x" * r} for r in range(ranks)]
        assert rank["said"] == ("from", ranks - 1)


@ranks_each
@pytest.mark.parametrize("case", [*ring_cases.BUCKETS, "two models"])
def test_buckets_in_the_ring_are_one_device(case: str, ranks: int) -> None:
    for rank in results(ranks):
        for alone, together in zip(*rank[case], strict=True):
            torch.testing.assert_close(together, alone, rtol=0, atol=2e-7)
        assert rank["identical"] == [rank["identical"][0]] * ranks


@ranks_each
def test_half_precision_buckets(ranks: int) -> None:
    for rank in results(ranks):
        for alone, together in zip(*rank["half"], strict=True):
            torch.testing.assert_close(together, alone, rtol=0, atol=3e-2)


@ranks_each
@pytest.mark.parametrize(
    ("fault", "said"),
    [
        ("shapes", "Desynchronized: Ranks called a collective with different tensors"),
        ("root", "ConfigurationError: No such rank to broadcast from"),
        ("complex", "Unsupported: This tensor does not travel in the ring"),
    ],
)
def test_refusals(fault: str, said: str, ranks: int) -> None:
    for rank in results(ranks):
        assert str(rank[fault]).startswith(said), rank[fault]
        np.testing.assert_array_equal(rank["after"], [ranks, ranks])
