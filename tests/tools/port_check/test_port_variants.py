"""Real models of both frameworks: what is equal is found equal; other backends, losses, layouts and
dtypes; models that are none.
"""

from __future__ import annotations

import numpy as np
import pytest
from porting_kit import BATCHES, Benches, Checked, place

from dream import ConfigurationError, Unsupported, WorkerFailed
from dream.tools.model_process import open_process
from dream.tools.port_check import worker
from dream.tools.port_check.check import PortCheckRequest, check
from dream.tools.port_check.probe import make_loss

BOTH_WAYS = ("dense", "conv1d", "conv2d", "conv2d_same_stride", "batch_norm", "norms", "embedding",
             "attention", "lstm", "gru")  # fmt: skip
"""A pair for each kind of layer; the others hold what they hold from either side."""

CELLS = [
    pytest.param(
        old, new, name,
        marks=[pytest.mark.exhaustive] * (old == "keras" and name not in BOTH_WAYS),
    )
    for name in BATCHES
    for old, new in (("torch", "keras"), ("keras", "torch"))
]  # fmt: skip


@pytest.mark.parametrize(("old", "new", "name"), CELLS)
def test_what_is_equal_is_found_equal(checked: Checked, old: str, new: str, name: str) -> None:
    report = checked(f"{old}:{name}", f"{new}:{name}", name)
    assert report.first_layer is None, report
    assert report.first_gradient is None, report
    assert report.equal, report.settings
    assert all(row.gradients for row in report.rows)
    seen = [row.gave is not None and row.given is not None for row in report.rows]
    # one module, or the model; no like; between the parts of one layer
    unseen = ("bidirectional", "tokens", "packed", "cropped", "separable")
    assert all(seen) or name in unseen
    assert report.loss[0] == pytest.approx(report.loss[1], rel=1e-5)


def test_a_port_may_count_time_before_the_batch(checked: Checked) -> None:
    report = checked("keras:steps", "torch:steps_turned", "steps")
    assert report.equal, report


def test_weights_behind_a_map_that_both_flatten_alike_are_not_turned(checked: Checked) -> None:
    own, turned = "keras:flat_as_keras", "torch:flat_as_keras"
    report = checked(own, turned, "flat_as_keras")
    assert sum("in that order" in remark for remark in report.remarks) == 2, report.remarks
    report = checked(turned, own, "flat_as_keras", copy=False)
    assert report.first_value is not None


@pytest.mark.slow
def test_one_keras_model_on_both_backends(benches: Benches) -> None:
    where = place("keras:gru")
    with open_process("Keras on torch", worker.__name__, where, 100, "torch") as other:
        for name in ("batch_norm", "gru", "attention"):
            request = PortCheckRequest(
                place(f"keras:{name}"), place(f"keras:{name}"), BATCHES[name]
            )
            report = check(request, benches("keras"), other)
            assert report.equal, report
            assert report.backends == ("keras on tensorflow", "keras on torch")
            assert not report.remarks


def test_a_subclassed_model_is_seen_by_its_calls(checked: Checked) -> None:
    report = checked("torch:conv2d", "keras:subclassed", "conv2d")
    assert report.equal, report
    assert [row.new.kind for row in report.rows] == ["conv2d", "conv2d", "dense"]
    assert report.rows[2].new.flattened == (2, 2, 6)


def test_classes_are_a_target_for_cross_entropy(checked: Checked) -> None:
    y = np.array([0, 3, 1, 2, 2])
    more = {"more": {"y": y}}
    report = checked("torch:classes", "keras:classes", "dense", loss="cross_entropy", **more)
    assert report.equal, report
    with pytest.raises(ConfigurationError, match=r"target like the output.*y \(5,\)"):
        checked("torch:classes", "keras:classes", "dense", **more)
    with pytest.raises(ConfigurationError, match=r"Unknown loss.*Did you mean 'cross_entropy'"):
        checked("torch:classes", "keras:classes", "dense", loss="crossentropy")


@pytest.mark.parametrize("name", ["mean_squared", "cross_entropy"])
def test_the_slopes_are_those_of_the_loss(name: str) -> None:
    """Against differences."""
    outputs, y = np.random.default_rng(0).normal(size=(5, 4)), np.array([0, 3, 1, 2, 2])
    loss = make_loss(name, y if name == "cross_entropy" else None, 0)
    value, (slope,) = loss([outputs])
    step = np.random.default_rng(1).normal(size=outputs.shape) * 1e-6
    assert loss([outputs + step])[0] - value == pytest.approx(np.vdot(slope, step), rel=1e-4)
    if name == "cross_entropy":
        likely = np.exp(outputs) / np.exp(outputs).sum(-1, keepdims=True)
        assert value == pytest.approx(-np.mean(np.log(likely[range(5), y])), rel=1e-12)


def test_a_coarse_dtype_has_a_coarse_tolerance_and_is_told(checked: Checked) -> None:
    report = checked("torch:dense", "keras:coarse", "dense")
    assert not report.equal
    assert {(s.name, s.old, s.new) for s in report.settings} == {("dtype", "float32", "bfloat16")}
    assert report.first_layer is None
    assert 1e-5 < report.outputs[0].relative < report.outputs[0].tolerance
    strict = checked("torch:dense", "keras:coarse", "dense", tolerance=1e-6)
    assert strict.first_layer is not None


def test_as_is_turns_nothing(checked: Checked) -> None:
    report = checked("torch:dense", "keras:dense", "dense", as_is=True)
    assert report.equal
    with pytest.raises(WorkerFailed, match="expected input"):
        checked("torch:image", "keras:image", "image", as_is=True)
    assert checked("torch:image", "keras:image", "image").given == {
        "x": ((2, 3, 8, 8), (2, 8, 8, 3))
    }


def test_a_map_pairs_layers_by_name(checked: Checked) -> None:
    names = [row.new.name for row in checked("torch:square", "keras:square", "square").rows]
    with pytest.raises(ConfigurationError, match="Unknown name of the new model in the map"):
        checked("torch:square", "keras:square", "square", mapping={"first": "no_such"})
    found = checked(
        "torch:square", "torch:square", "square", mapping={"first": "second", "second": "first"}
    )
    assert len(names) == 2
    assert [row.new.name for row in found.rows] == ["second", "first"]
    assert found.first_layer is not None


def test_zeros_hide_nothing(checked: Checked) -> None:
    """Fresh statistics are all ones and zeros: as built, a wrong epsilon hardly shows."""
    report = checked("keras:batch_norm", "torch:wrong_eps", "batch_norm")
    name = report.rows[1].old.name
    assert f"{name} moving_variance" in report.shaken
    left = checked("keras:batch_norm", "torch:wrong_eps", "batch_norm", shake=False)
    assert not left.shaken
    assert not left.equal


def test_computed_weights_are_refused_by_name(checked: Checked) -> None:
    with pytest.raises(Unsupported, match=r"parametrized module.*'0', a ParametrizedLinear"):
        checked("keras:dense", "torch:normed", "dense")


@pytest.mark.parametrize("name", ["joined", "joined_unseen"])
def test_a_flattened_map_among_other_features_is_refused(checked: Checked, name: str) -> None:
    with pytest.raises(Unsupported, match=r"a map of \(6, 6, 4\) before '(concat|dense)"):
        checked("torch:image", f"keras:{name}", "image")


def test_what_is_no_model_is_refused(checked: Checked) -> None:
    with pytest.raises(ConfigurationError, match=r"did not return a model\. Received: int"):
        checked("keras:dense", "torch:no_model", "dense")
    with pytest.raises(
        ConfigurationError, match=r"Unknown function in .*Did you mean 'dense'"
    ) as e:
        checked("keras:dense", "torch:dens", "dense")
    assert " nn," not in str(e.value)  # a module that the file imports


def test_dropouts_of_another_count_are_told(checked: Checked) -> None:
    report = checked("torch:encoder", "keras:encoder", "encoder")
    assert not report.remarks
    fewer = checked("torch:conv2d", "keras:subclassed", "conv2d")
    assert fewer.remarks[0].startswith("Dropout layers: 1 in the old model, 0 in the new one.")


@pytest.mark.parametrize(
    ("name", "timeout", "words"), [("dies", 500, "its process ended"), ("sleeps", 4, "for 4 s")]
)
def test_a_model_that_dies_or_hangs_is_told(name: str, timeout: float, words: str) -> None:
    with (
        open_process("the model", worker.__name__, place(f"torch:{name}"), timeout) as it,
        pytest.raises(WorkerFailed, match=words),
    ):
        it.get("build", place(f"torch:{name}"), BATCHES["dense"], False)
