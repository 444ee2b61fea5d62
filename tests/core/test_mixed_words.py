"""What ranks of two frameworks compare before they train: pure functions, no rank started."""

from __future__ import annotations

import numpy as np
import pytest

from dream import ConfigurationError, Unsupported
from dream.mixed.order import InOrder, Sum, Targets
from dream.mixed.ranks import block_words, by_rank, reduction
from dream.model_description.layers import Description, Layer, Parameter, Part
from dream.model_description.steps import OPS, Permute


def test_the_ring_is_taken_where_frameworks_differ() -> None:
    assert reduction("auto", ["torch", "tensorflow"]) == "horovod"
    assert reduction("horovod", ["torch", "tensorflow"]) == "horovod"
    assert reduction("auto", ["torch", "torch"]) == "auto"
    assert reduction("gloo", ["torch"]) == "gloo"


@pytest.mark.parametrize("asked", ["gloo", "nccl", "grpc"])
def test_no_other_transport_speaks_both_languages(asked: str) -> None:
    with pytest.raises(ConfigurationError, match=f"{asked!r}, torch on ranks 0 and 2, tensorflow"):
        reduction(asked, ["torch", "tensorflow", "torch"])


def test_ranks_are_told_by_framework() -> None:
    assert by_rank(["tensorflow", "torch"]) == "tensorflow on rank 0, torch on rank 1"


def test_a_block_is_told_as_it_is_written() -> None:
    words = block_words("mirrored", "auto", 3, {"resync": 5})
    assert words == "mirrored(reduction='auto', resync=5, seed=3)"


def seen(*batches: list[float] | np.ndarray) -> Sum:
    found = Sum()
    for batch in batches:
        found.add(np.asarray(batch))
    return found


def test_the_same_targets_in_the_same_order_are_alike() -> None:
    whole = np.arange(10) % 3
    assert not seen(whole).differs(seen(whole[:4], whole[4:4], whole[4:].astype(np.int32)))


@pytest.mark.parametrize("other", [[0, 2, 1, 3], [0, 1, 2], [0, 1, 2, 4], [3, 2, 1, 0]], ids=str)
def test_another_order_or_another_number_of_targets_differs(other: list[int]) -> None:
    assert seen([0, 1, 2, 3]).differs(seen(other))


def test_floats_may_differ_by_preprocessing_and_other_sorts_are_not_compared() -> None:
    assert not seen([0.1, 0.2]).differs(seen([0.1 + 1e-8, 0.2]))
    assert seen([0.1, 0.2]).differs(seen([0.2, 0.1]))
    assert not seen([1, 0]).differs(seen(np.eye(2)))


def test_a_whole_batch_tells_of_every_share() -> None:
    targets = Targets()
    targets.add_whole(np.arange(5), 2)
    assert [targets.shares[rank].samples for rank in (0, 1)] == [3, 2]


def described(kind: str, *parameters: Parameter) -> Description:
    return Description("torch", (Layer("a", kind, parameters),))


def parameter(name: str, shape: tuple[int, ...], *parts: Part) -> Parameter:
    return Parameter(name, shape, "float32", trainable=True, parts=parts)


def test_arrays_travel_in_order_and_come_back() -> None:
    kernel = parameter("w", (2, 3), Part("kernel", (2, 3), (Permute((1, 0)),)))
    order = InOrder(described("dense", kernel, parameter("b", (2,), Part("bias", (2,)))), OPS)
    arrays = {"w": np.arange(6).reshape(2, 3), "b": np.ones(2)}
    listed = order.listed(arrays, "value")
    assert [x.shape for x in listed] == [(2,), (3, 2)]
    assert [entry[:2] for entry in order.layout(["w", "b"])] == [
        ("a (dense) bias", (2,)), ("a (dense) kernel", (3, 2)),
    ]  # fmt: skip
    back = order.named(listed, ["w", "b"], "value")
    assert {name: x.tolist() for name, x in back.items()} == {
        name: x.tolist() for name, x in arrays.items()
    }
    assert len(order.listed({"w": arrays["w"]}, "gradient")) == 1


def test_what_has_no_one_to_one_partner_is_named() -> None:
    biases = (parameter(n, (2,), Part("bias", (2,), summed=True)) for n in ("b_ih", "b_hh"))
    with pytest.raises(Unsupported, match=r"b_ih, b_hh of .a. \(lstm\)"):
        InOrder(described("lstm", *biases), OPS)
