"""The plain data between layouts: there and back, and the orders that are easily mistaken."""

from __future__ import annotations

import pickle

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dream.model_description.layers import Layer, Parameter, Part, from_canonical, to_canonical
from dream.model_description.steps import (
    OPS,
    Permute,
    Reorder,
    Reshape,
    Shape,
    Steps,
    apply,
    dense_order,
    inverse,
    shape_after,
)

SHAPES = st.lists(st.integers(1, 5), min_size=1, max_size=4).map(tuple)


@st.composite
def shapes_and_steps(draw: st.DrawFn) -> tuple[Shape, Steps]:
    first = shape = draw(SHAPES)
    steps: list[Permute | Reorder | Reshape] = []
    for _ in range(draw(st.integers(0, 4))):
        kind = draw(st.sampled_from([Permute, Reorder, Reshape]))
        if kind is Permute:
            steps.append(Permute(tuple(draw(st.permutations(range(len(shape)))))))
        elif kind is Reorder:
            dim = draw(st.integers(0, len(shape) - 1))
            steps.append(Reorder(dim, tuple(draw(st.permutations(range(shape[dim]))))))
        else:
            after = draw(st.sampled_from([(*shape, 1), (int(np.prod(shape)),), (1, *shape)]))
            steps.append(Reshape(shape, after))
        shape = shape_after(steps[-1:], shape)
    return first, tuple(steps)


@given(shapes_and_steps())
def test_there_and_back_is_nothing(drawn: tuple[Shape, Steps]) -> None:
    shape, steps = drawn
    x = np.arange(np.prod(shape)).reshape(shape)
    there = apply(steps, x, OPS)
    assert there.shape == shape_after(steps, shape)
    np.testing.assert_array_equal(apply(inverse(steps), there, OPS), x)
    assert pickle.loads(pickle.dumps(steps)) == steps


@given(SHAPES.filter(lambda s: len(s) > 1), st.integers(1, 3), st.integers(1, 3))
def test_flattened_maps_count_channels_first(shape: Shape, before: int, after: int) -> None:
    maps = np.random.default_rng(0).normal(size=(before, *shape, after))
    flat = maps.reshape(before, -1, after)
    steps = dense_order(flat.shape, 1, shape)
    torch_order = np.moveaxis(maps, len(shape), 1).reshape(before, -1, after)
    np.testing.assert_array_equal(apply(steps, flat, OPS), torch_order)
    np.testing.assert_array_equal(apply(inverse(steps), torch_order, OPS), flat)


def parameter(name: str, *parts: Part) -> Parameter:
    first = parts[0].shape
    shape = (len(parts) * first[0], *first[1:]) if len(parts) > 1 else first
    return Parameter(name, shape, "float32", True, parts)


PACKED = Layer(
    "attention",
    "attention",
    (parameter("in", *(Part(role, (6, 4), (Permute((1, 0)),)) for role in ("q", "k", "v"))),),
)
SUMMED = Layer(
    "lstm",
    "lstm",
    (parameter("ih", Part("bias", (8,), summed=True)),
     parameter("hh", Part("bias", (8,), summed=True))),
)  # fmt: skip


def test_a_packed_parameter_is_split_and_joined() -> None:
    array = np.arange(72.0).reshape(18, 4)
    roles = to_canonical(PACKED, {"in": array}, OPS)
    assert list(roles) == ["k", "q", "v"]
    np.testing.assert_array_equal(roles["k"], array[6:12].T)
    np.testing.assert_array_equal(from_canonical(PACKED, roles, OPS)["in"], array)


def test_biases_that_are_summed_are_copied_to_one_and_their_gradient_to_both() -> None:
    arrays = {"ih": np.full(8, 2.0), "hh": np.full(8, 3.0)}
    assert SUMMED.summed == {"bias"}
    roles = to_canonical(SUMMED, arrays, OPS)
    np.testing.assert_array_equal(roles["bias"], np.full(8, 5.0))
    back = from_canonical(SUMMED, roles, OPS)
    np.testing.assert_array_equal(back["ih"], np.full(8, 5.0))
    np.testing.assert_array_equal(back["hh"], np.zeros(8))
    gradient = to_canonical(SUMMED, {"ih": np.full(8, 2.0), "hh": np.full(8, 2.0)}, OPS, "gradient")
    np.testing.assert_array_equal(gradient["bias"], np.full(8, 2.0))
    given_back = from_canonical(SUMMED, gradient, OPS, "gradient")
    assert {name: value[0] for name, value in given_back.items()} == {"ih": 2.0, "hh": 2.0}


@pytest.mark.parametrize("lacking", ["ih", "hh"])
def test_a_role_with_a_part_missing_is_left_out(lacking: str) -> None:
    arrays = {name: np.ones(8) for name in ("ih", "hh") if name != lacking}
    assert to_canonical(SUMMED, arrays, OPS) == {}
