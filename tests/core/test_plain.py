"""Values as bytes and back: equal in value and type, and hostile bytes make nothing."""

from __future__ import annotations

import json
import pickle
import struct
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from dream import ConfigurationError
from dream._plain import Codec, Garbled, Unpackable, pack, unpack

LEAVES = (
    st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.binary(max_size=50)
)
KEYS = st.text(max_size=5) | st.integers()
VALUES = st.recursive(
    LEAVES,
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.lists(inner, max_size=4).map(tuple)
        | st.dictionaries(KEYS, inner, max_size=4)
    ),
    max_leaves=20,
)


def same(one: Any, other: Any) -> bool:
    if type(one) is not type(other):
        return False
    if isinstance(one, dict):
        return list(one) == list(other) and all(same(one[key], other[key]) for key in one)
    if isinstance(one, (list, tuple)):
        return len(one) == len(other) and all(map(same, one, other))
    if isinstance(one, float):
        return struct.pack("d", one) == struct.pack("d", other) or one != one
    return bool(one == other)


@given(VALUES)
def test_values_come_back_as_they_were(value: Any) -> None:
    assert same(unpack(pack(value)), value)


@given(st.sampled_from("?bBhiqefdFU"), st.lists(st.integers(0, 3), max_size=3))
def test_arrays_come_back_as_they_were(kind: str, shape: list[int]) -> None:
    array = np.arange(np.prod(shape, dtype=int)).reshape(shape).astype(kind)
    back = unpack(pack(array))
    assert (back.dtype, back.shape) == (array.dtype, array.shape)
    np.testing.assert_array_equal(back, array)
    assert back.flags.writeable


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float8_e5m2"])
def test_narrow_floats_are_kept(dtype: str) -> None:
    ml_dtypes = pytest.importorskip("ml_dtypes")
    array = np.array([1.5, -0.25], getattr(ml_dtypes, dtype, dtype))
    back = unpack(pack({"a": array, "scalar": array[0]}))
    assert back["a"].dtype == array.dtype
    assert type(back["scalar"]) is type(array[0])
    np.testing.assert_array_equal(back["a"].astype("f4"), array.astype("f4"))


def test_array_orders_and_views() -> None:
    for array in (np.ones((2, 3), order="F"), np.arange(10)[::3], np.arange(3, dtype=">i4")):
        np.testing.assert_array_equal(unpack(pack(array)), array)


@given(VALUES, st.data())
def test_bytes_cut_short_are_refused(value: Any, data: Any) -> None:
    packed = pack(value)
    cut = data.draw(st.integers(0, len(packed) - 1))
    with pytest.raises(Garbled):
        unpack(packed[:cut])
    with pytest.raises(Garbled):
        unpack(packed + b"x")


@given(VALUES, st.lists(st.tuples(st.integers(0, 1 << 16), st.integers(0, 255)), max_size=5))
def test_bytes_that_were_changed_give_a_value_or_the_one_error(
    value: Any, changes: list[tuple[int, int]]
) -> None:
    packed = bytearray(pack([value, np.arange(3)]))
    for at, byte in changes:
        packed[at % len(packed)] = byte
    with suppress(Garbled):
        unpack(packed)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=3),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from([*"tdbanxq"]), inner, max_size=2)
    ),
)


def packed_tree(text: bytes, buffers: bytes = b"") -> bytes:
    return struct.pack("<4sQ", b"drm1", len(text)) + text + buffers


ARRAYS = st.tuples(st.sampled_from("an"), st.tuples(st.text(max_size=4), JSON))


@given(JSON | ARRAYS.map(lambda pair: dict([pair])))
@example({"a": ("a", None)})
def test_hostile_trees_give_a_value_or_the_one_error(tree: Any) -> None:
    with suppress(Garbled):
        unpack(packed_tree(json.dumps(tree).encode(), bytes(16)))


@pytest.mark.parametrize(
    "tree",
    [
        '{"a": ["O", [1]]}', '{"a": ["<f8", [9999999999999999]]}', '{"a": ["i4,f8", [1]]}',
        '{"a": ["<f8", [-1]]}', '{"a": ["<f8", [true]]}', '{"a": ["|S0", [3]]}', '{"b": 99}',
        '{"b": -1}', '{"d": [[[], 1]]}', '{"x": ["tag", 1]}', "[" * 100_000, "[" * 90 + "]" * 90,
        '{"a": ["<f8", [0, 99999999999999999999]]}', '{"a": ["(2,3)f8", [1]]}', "9" * 5000, "{}",
    ],
)  # fmt: skip
def test_trees_that_claim_what_is_not_there(tree: str) -> None:
    with pytest.raises(Garbled):
        unpack(packed_tree(tree.encode(), bytes(8)))


class Bomb:
    """Unpickled, it makes a file."""

    def __init__(self, file: Path) -> None:
        self._file = file

    def __reduce__(self) -> Any:
        return Path.touch, (self._file,)


def test_a_pickle_is_no_value(tmp_path: Path) -> None:
    file = tmp_path / "made"
    for data in (pickle.dumps(Bomb(file)), packed_tree(b"[]", pickle.dumps(Bomb(file)))):
        with pytest.raises(Garbled):
            unpack(data)
    assert not file.exists()


@pytest.mark.parametrize(
    ("value", "named"),
    [
        (object(), "type object"),
        ([1, {"a": lambda: 1}], "type function"),
        ({1}, "type set"),
        (np.array([object()]), "numpy.ndarray"),
        (Path("a"), "pathlib.PosixPath"),
        ({"n": 1 << 9000}, "int, 9001 bits long"),
    ],
)
def test_what_cannot_travel_is_named(value: Any, named: str) -> None:
    with pytest.raises(ConfigurationError, match=named) as error:
        pack(value)
    assert isinstance(error.value, Unpackable)


def test_a_list_in_itself_is_refused() -> None:
    endless: list[Any] = []
    endless.append(endless)
    with pytest.raises(Unpackable, match="levels deep"):
        pack(endless)


def test_a_codec_carries_further_types() -> None:
    def back(tag: str, value: Any) -> object:
        if tag != "path":
            raise ValueError(tag)
        return Path(value)

    codec = Codec(lambda x: ("path", str(x)) if isinstance(x, Path) else None, back)
    assert unpack(pack([Path("a"), 1], codec), codec) == [Path("a"), 1]
    with pytest.raises(Garbled):
        unpack(packed_tree(b'{"x": ["other", 1]}'), codec)
    with pytest.raises(Unpackable):
        pack(object(), codec)
