"""What is wrong in a port is found at its place, and said."""

from __future__ import annotations

from typing import NamedTuple

import pytest
from porting_kit import Checked

from dream import ConfigurationError, WorkerFailed


class Fault(NamedTuple):
    """batch: whose pair; place: of the layer that differs first, or None for the outputs."""

    new: str
    batch: str
    place: int | None
    where: str
    reason: str


FAULTS = [
    Fault("torch:wrong_eps", "batch_norm", 1, "in", "epsilon differs: old 0.001, new 1e-05"),
    Fault("torch:wrong_layer_norm", "norms", 1, "in", "epsilon differs"),
    Fault("torch:wrong_gelu", "dense", 1, "before", "old gelu (exact), new gelu (tanh)"),
    Fault("torch:cropped_early", "cropped", 0, "in", ""),
    Fault("torch:wrong_time", "steps", 0, "before", ""),
    Fault("torch:wrong_bias", "dense", 1, "in", "The bias is missing in the new model"),
    Fault("torch:wrong_padding", "conv2d_same_stride", 0, "in",
          "padding differs: old ((0, 1), (0, 1)), new ((1, 1), (1, 1))"),
    Fault("torch:wrong_softmax", "dense", None, "after", "old none, new softmax"),
    Fault("keras:wrong_recurrent_activation", "lstm", 0, "in",
          "recurrent_activation differs: old sigmoid, new hard_sigmoid"),
]  # fmt: skip


def other(name: str) -> str:
    return "keras" if name.startswith("torch") else "torch"


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.new)
def test_a_fault_is_found_at_its_layer_with_its_reason(checked: Checked, fault: Fault) -> None:
    report = checked(f"{other(fault.new)}:{fault.batch}", fault.new, fault.batch)
    assert not report.equal
    first = report.first_layer
    assert first is not None
    names = [row.old.name for row in report.rows]
    assert (None if first.layer is None else names.index(first.layer)) == fault.place, names
    assert first.where == fault.where
    told = any(fault.reason in reason for reason in report.reasons)
    assert told or not fault.reason, report.reasons


@pytest.mark.parametrize(
    ("new", "batch", "name", "values"),
    [
        ("torch:wrong_momentum", "batch_norm", "momentum", "0.99 0.9"),
        ("torch:wrong_dropout", "conv2d", "rates", "[0.5] [0.25]"),
        ("torch:wrong_frozen", "dense", "kernel: trainable", "trained frozen"),
    ],
)
def test_a_setting_that_outputs_do_not_show_is_a_difference(
    checked: Checked, new: str, batch: str, name: str, values: str
) -> None:
    report = checked(f"keras:{batch}", new, batch)
    assert report.first_layer is None
    assert report.first_gradient is None
    assert not report.equal
    found = next(setting for setting in report.settings if setting.name == name)
    assert f"{found.old} {found.new}" == values


def test_a_gradient_that_does_not_flow_is_found_where_the_outputs_agree(checked: Checked) -> None:
    report = checked("keras:dense", "torch:wrong_detach", "dense")
    assert report.first_layer is None
    first = report.first_gradient
    assert first is not None
    assert (first.layer, first.role) == (report.rows[0].old.name, "bias")
    assert "No gradient flows to it in the new model" in report.reasons[0]


def test_a_model_of_other_shapes_is_no_port(checked: Checked) -> None:
    with pytest.raises(ConfigurationError, match=r"\(8, 3\).*'second'.*\(8, 4\)"):
        checked("keras:dense", "torch:wrong_units", "dense")


def test_a_layer_that_is_not_tied_is_no_port(checked: Checked) -> None:
    with pytest.raises(ConfigurationError, match=r"has no partner.*'head'"):
        checked("keras:tied", "torch:untied", "tied")


def test_another_gru_is_no_port(checked: Checked) -> None:
    with pytest.raises(ConfigurationError, match="bias, input_bias, recurrent_bias"):
        checked("torch:gru", "keras:wrong_gates", "gru")


@pytest.mark.parametrize(
    ("new", "batch", "place", "reason"),
    [
        ("torch:hasty_gru", "gru", (0, "input_bias"), "r, z, n where z, r, n belong"),
        ("torch:hasty_transpose", "square", (0, "kernel"), "The kernel is transposed"),
        ("torch:hasty_flatten", "conv2d", (2, "kernel"), "rows are the same in another order"),
    ],
)
def test_weights_converted_by_hand_are_compared(
    checked: Checked, new: str, batch: str, place: tuple[int, str], reason: str
) -> None:
    report = checked(f"torch:{batch}", new, batch, copy=False)
    first = report.first_value
    assert first is not None
    assert ([row.old.name for row in report.rows].index(first.layer), first.role) == place
    assert reason in report.reasons[0]
    assert not report.shaken


def test_the_same_model_keeps_its_own_weights(checked: Checked) -> None:
    report = checked("torch:gru", "torch:gru", "gru", copy=False)
    assert report.equal
    assert all(gap.largest == 0 for row in report.rows for gap in row.values.values())


def test_an_error_in_a_model_is_told_and_the_process_goes_on(checked: Checked) -> None:
    with pytest.raises(WorkerFailed, match="No module named 'no_such_module'") as raised:
        checked("keras:dense", "torch:wrong_import", "dense")
    assert "in wrong_import" in raised.value.traceback
    assert checked("keras:dense", "torch:dense", "dense").equal
