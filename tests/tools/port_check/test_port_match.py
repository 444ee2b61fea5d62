"""Which layer is which: by order, by a map, and what is said where nothing fits."""

from __future__ import annotations

import pytest

from dream import ConfigurationError
from dream.model_description.layers import Description, Layer, Parameter, Part
from dream.model_description.steps import Permute
from dream.tools.port_check.match import match


def dense(name: str, inputs: int, units: int, *, bias: bool = True, torch: bool = False) -> Layer:
    shape, steps = (inputs, units), ()
    if torch:
        shape, steps = (units, inputs), (Permute((1, 0)),)
    parts = [Part("kernel", shape, steps)] + [Part("bias", (units,))] * bias
    parameters = [
        Parameter(f"{name}.{part.role}", part.shape, "float32", True, (part,)) for part in parts
    ]
    return Layer(name, "dense", tuple(parameters))


def model(*layers: Layer) -> Description:
    return Description("torch", layers)


OLD = model(dense("fc1", 4, 3, torch=True), dense("fc2", 3, 3, torch=True))
NEW = model(dense("first", 4, 3), dense("second", 3, 3))


def names(*args: object, **kwargs: bool) -> list[tuple[str, str]]:
    return [(pair.old.name, pair.new.name) for pair in match(*args, **kwargs)]  # type: ignore[arg-type]


def test_by_order() -> None:
    assert names(OLD, NEW) == [("fc1", "first"), ("fc2", "second")]


@pytest.mark.parametrize(
    "mapping", [{"fc2": "first"}, {"fc2.kernel": "first.kernel", "fc2.bias": "first.bias"}]
)
def test_a_map_comes_first_and_order_for_the_rest(mapping: dict[str, str]) -> None:
    old = model(dense("fc1", 3, 3), dense("fc2", 4, 3))
    assert names(old, NEW, mapping) == [("fc1", "second"), ("fc2", "first")]


def test_the_first_pair_that_does_not_fit_is_named_with_both_shapes() -> None:
    new = model(dense("first", 4, 3), dense("second", 3, 5), dense("third", 3, 6))
    with pytest.raises(ConfigurationError) as raised:
        match(OLD, new)
    for words in ("differ in bias, kernel", "'fc2'", "'second'", "(3, 3)", "(3, 5)"):
        assert words in str(raised.value)
    assert "third" not in str(raised.value)


def test_another_kind_is_no_partner() -> None:
    new = model(NEW.layers[0], Layer("norm", "layer_norm", ()))
    with pytest.raises(ConfigurationError, match=r"different kinds.*'fc2' \(dense.*'norm' \(layer"):
        match(OLD, new)


ALONE = model(OLD.layers[0]), model(NEW.layers[0])


@pytest.mark.parametrize(
    ("old", "new", "whose"), [(OLD, ALONE[1], "old"), (ALONE[0], NEW, "new")], ids=["old", "new"]
)
def test_a_layer_too_many_is_named(old: Description, new: Description, whose: str) -> None:
    with pytest.raises(ConfigurationError, match=f"of the {whose} model has no partner"):
        match(old, new)


def test_a_forgotten_bias_may_be_let_be() -> None:
    new = model(NEW.layers[0], dense("second", 3, 3, bias=False))
    with pytest.raises(ConfigurationError, match="differ in bias"):
        match(OLD, new)
    _, pair = match(OLD, new, optional=True)
    assert (pair.missing_in_new, pair.missing_in_old, pair.roles) == (["bias"], [], ["kernel"])


def test_a_map_is_held_to_the_models() -> None:
    with pytest.raises(ConfigurationError, match=r"old model in the map.*Did you mean 'fc"):
        match(OLD, NEW, {"fc": "first"})
    with pytest.raises(ConfigurationError, match="new model in the map"):
        match(OLD, NEW, {"fc1": "frist"})
    with pytest.raises(ConfigurationError, match="two partners"):
        match(OLD, NEW, {"fc1.kernel": "first.kernel", "fc1.bias": "second.bias"})
    with pytest.raises(ConfigurationError, match="same partner"):
        match(OLD, NEW, {"fc1": "first", "fc2": "first"})
