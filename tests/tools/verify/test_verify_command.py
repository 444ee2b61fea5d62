"""`dream verify` on whole scripts: what is equal, what is not and why, and what cannot be."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from launch_scripts import keras_on
from verify_scripts import ALL, EQUAL

from dream import ConfigurationError
from dream.cli import main
from dream.launch.job import Job
from dream.launch.start import run
from dream.strategies import registry
from dream.tools.placing import Placement
from dream.tools.verify.main import parse
from dream.tools.verify.runs import Ran, ScriptRunner

Verify = Callable[..., tuple[int, dict[str, Any], str]]


@pytest.fixture
def verify(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> Verify:
    """The exit code, the figures, and all that is printed, for a script by its name."""

    def command(name: str, *given: str) -> tuple[int, dict[str, Any], str]:
        script, file = tmp_path / f"{name}.py", tmp_path / "out.json"
        script.write_text(ALL[name])
        of_one_parent(name, monkeypatch)
        with pytest.raises(SystemExit) as ended:
            main(["verify", str(script), "--json", str(file), *given])
        shown = capsys.readouterr()
        figures = json.loads(file.read_text()) if file.exists() else {}
        return int(ended.value.code or 0), figures, shown.out + shown.err

    return command


def of_one_parent(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Have all scripts of Keras's forked from one, whatever else they import."""
    if "import keras" in ALL[name]:
        for key, text in keras_on(os.environ.get("KERAS_BACKEND", "tensorflow")).items():
            monkeypatch.setenv(key, text)


def rulings(figures: dict[str, Any]) -> dict[str, str]:
    (row,) = figures["strategies"]
    return {cause["name"]: cause["ruling"] for cause in row["causes"]}


def test_a_loop_that_is_equal(verify: Verify) -> None:
    code, figures, text = verify("torch_loop", "--strategy", "mirrored", "--steps", "8")
    assert code == 0, text
    assert "Equal to single: the plain script, mirrored x 2." in text
    assert figures["plain"]["equal"]
    assert (figures["steps"], figures["ended_early"]) == (8, True)
    assert figures["parameters"] == ["0.bias", "0.weight", "2.bias", "2.weight"]
    (row,) = figures["strategies"]
    assert row["largest_parameter_difference"] <= 1e-6
    assert row["largest_loss_difference"] <= 1e-6  # the uneven sixth batch among them


@pytest.mark.slow
def test_batches_that_keras_takes_at_once_are_one_step_and_said_so(verify: Verify) -> None:
    code, figures, text = verify("keras_executions", "--strategy", "mirrored")
    assert code == 0, text
    assert "single: 4 steps of 4 batches (steps_per_execution=4" in text
    assert (figures["steps"], figures["batches_per_step"]) == (4, 4)
    assert "16 updates" in text


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "backend", "parameters"),
    [
        ("torch_step", "torch", 4),
        pytest.param("keras_fit", "tensorflow", 4, marks=pytest.mark.exhaustive),
        pytest.param("keras_fit", "torch", 4, marks=pytest.mark.exhaustive),
        pytest.param("keras_step", "tensorflow", 2, marks=pytest.mark.exhaustive),
        ("keras_tape", "tensorflow", 2),
        ("torch_scaler", "torch", 4),
        pytest.param("keras_rivals", "tensorflow", 4, marks=pytest.mark.exhaustive),
    ],
)
def test_other_ways_to_train_are_equal(
    name: str, backend: str, parameters: int, verify: Verify, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KERAS_BACKEND", backend)
    code, figures, text = verify(name, "--strategy", "mirrored", "--steps", "14")
    assert code == 0, text
    assert len(figures["parameters"]) == parameters
    assert figures["framework"] == backend
    assert figures["plain"]["equal"], text
    assert figures["steps"] == (12 if name == "keras_step" else 14)
    assert figures["losses"][0] > min(figures["losses"][6:]) > 0


_REORDERED, _NUDGED = "samples are in another order", "parameters begin one rounding away"


@pytest.mark.slow
def test_attention_is_equal_but_for_rounding(verify: Verify) -> None:
    code, figures, text = verify("attention", "--strategy", "mirrored")
    assert code == 0, text
    (row,) = figures["strategies"]
    (noisy,) = row["equal_but_for_rounding"]
    assert noisy["name"] == "attention.in_proj_bias"
    assert row["largest_parameter_difference"] > 1e-6
    assert "single differs" in text


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "bias", "how"),
    [
        ("bias_before_norm", "0.bias", _REORDERED),
        ("bias_before_norm_and_dropout", "0.bias", _NUDGED),
        pytest.param(
            "keras_bias_before_norm", "before/bias", _REORDERED, marks=pytest.mark.exhaustive
        ),
        pytest.param(
            "keras_bias_before_norm_and_dropout", "before/bias", _NUDGED,
            marks=pytest.mark.exhaustive,
        ),
    ],
)  # fmt: skip
def test_a_bias_before_batch_norm_is_equal_but_for_rounding(
    name: str, bias: str, how: str, verify: Verify
) -> None:
    """Which cannot be seen in parts: BatchNorm looks at a batch as a whole. Nor with the samples in
    another order, if each draws random numbers: this was told to differ."""
    code, figures, text = verify(name, "--strategy", "mirrored")
    assert code == 0, text
    (row,) = figures["strategies"]
    assert any(noisy["name"].endswith(bias) for noisy in row["equal_but_for_rounding"])
    assert how in " ".join(text.split())


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "cause", "step"),
    [
        pytest.param("batch_norm", "BatchNorm's statistics", 1, marks=pytest.mark.exhaustive),
        pytest.param("no_seed", "single is not deterministic", 1, marks=pytest.mark.exhaustive),
    ],
)
def test_what_differs_is_caught_with_its_cause(
    name: str, cause: str, step: int, verify: Verify
) -> None:
    code, figures, text = verify(name, "--strategy", "mirrored", "--steps", "8")
    assert code == 1, text
    (row,) = figures["strategies"]
    assert row["verdict"] == "DIFFERS"
    assert row["first_step_that_differs"] <= step, text
    assert row["worst_parameter"]["difference"] > row["worst_parameter"]["allowed"]
    assert [name for name, ruling in rulings(figures).items() if ruling == "yes"] == [cause], text


@pytest.mark.slow
def test_what_dream_said_of_a_loss_is_named_beside_the_causes(verify: Verify) -> None:
    """Samples that are held against one another: ranks have fewer of them."""
    code, figures, text = verify("in_batch", "--strategy", "mirrored", "--steps", "3", "--quick")
    assert code == 1, text
    assert figures["plain"]["equal"]
    (row,) = figures["strategies"]
    assert row["causes"] == []  # --quick
    assert "what MmBackward0 divides by cannot be told" in text
    assert any("MmBackward0" in line for line in row["said"])


@pytest.mark.slow
@pytest.mark.parametrize(
    "name",
    [
        *(pytest.param(n, marks=pytest.mark.exhaustive) for n in ("sum", "dropout", "shuffling")),
        "three_causes",
        "tape_unseeded",
        pytest.param("keras_dropout", marks=pytest.mark.exhaustive),
    ],
)
def test_sums_dropout_and_drawing_are_those_of_one_device(name: str, verify: Verify) -> None:
    code, figures, text = verify(name, "--strategy", "mirrored", "--steps", "8")
    assert code == 0, text
    assert figures["strategies"][0]["verdict"] == "equal"


@pytest.mark.slow
def test_data_that_a_script_has_dealt_already_is_refused(verify: Verify) -> None:
    code, figures, text = verify("dealt_twice", "--strategy", "mirrored", "--steps", "8")
    assert code == 1
    assert figures["strategies"][0]["verdict"] in ("FAILED", "REFUSED"), text
    assert "data differ" in text


@pytest.mark.exhaustive
def test_two_causes_at_once(verify: Verify) -> None:
    _, figures, text = verify("both", "--strategy", "mirrored", "--steps", "8")
    found = rulings(figures)
    assert found["random numbers in the model"] == found["BatchNorm's statistics"] == "yes", text


@pytest.mark.slow
def test_shares_that_a_script_cuts_by_hand_are_no_global_batch(verify: Verify) -> None:
    """Uneven ones: the mean of their means is not that of the batch."""
    code, figures, text = verify("uneven", "--strategy", "mirrored", "--steps", "8")
    assert code == 1
    (row,) = figures["strategies"]
    assert (row["verdict"], row["first_step_that_differs"]) == ("DIFFERS", 6), text
    assert rulings(figures)["an uneven batch"] != "no"


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("no_block", "The script entered no block, or one in which no framework was"),
        ("crashes", "ValueError: mine"),
        ("bad_option", "bad_option.py, line 2)"),
        ("no_loss", "No loss was computed."),
        pytest.param(
            "compiled", "What XLA compiles cannot tell its losses", marks=pytest.mark.slow
        ),
        pytest.param(
            "read_in_a_function", "Loop outside, and call the function", marks=pytest.mark.slow
        ),
    ],
)
def test_nothing_to_hold_a_strategy_against(name: str, words: str, verify: Verify) -> None:
    code, figures, text = verify(name)
    assert (code, figures) == (2, {}), text
    assert words in text
    assert f"{name}.py" in text


def test_a_strategy_that_fails_or_is_not_there_leaves_the_others(
    verify: Verify, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delitem(registry.STRATEGIES, ("torch", "horovod"))  # type: ignore[arg-type]
    code, figures, text = verify(
        "torch_loop", "--strategy", "mirrored:reduction=grpc", "--strategy", "horovod",
        "--strategy", "mirrored:reduction=gloo", "--strategy", "mirrored:devices=2",
        "--steps", "2",
    )  # fmt: skip
    assert code == 1
    verdicts = [row["verdict"] for row in figures["strategies"]]
    assert verdicts == ["CANNOT RUN", "CANNOT RUN", "equal", "REFUSED"], text
    assert "torch has no reduction='grpc' under 'mirrored'" in text
    assert "torch has no 'horovod'" in text
    assert "a torch process uses one device" in text


def _requests(*names: str) -> list[str]:
    return [word for name in names for word in ("--strategy", name)]


@pytest.mark.slow
def test_split_and_served_models_are_held_too_and_what_is_not_exact_is_said(
    verify: Verify,
) -> None:
    asked = _requests(
        "model_parallel:split=pipeline", "parameter_server:staleness=0", "local_sgd"
    )  # fmt: skip
    code, figures, text = verify("torch_step_seeded", *asked, "--steps", "7")
    assert code == 1
    verdicts = [row["verdict"] for row in figures["strategies"]]
    assert verdicts == ["equal", "equal", "NOT EXACT"], text
    assert "averaged every 8 steps only; with every=1 after each" in text
    assert [row["processes"] for row in figures["strategies"]] == [2, 3, 2]


@pytest.mark.exhaustive
def test_every_way_to_split_is_held_too(verify: Verify) -> None:
    asked = _requests("sharded", "sharded:zero=1", "model_parallel:split=tensor", "data_parallel")
    code, figures, text = verify("torch_step", *asked, "--steps", "7")
    assert code == 0, text
    assert [row["processes"] for row in figures["strategies"]] == [2, 2, 2, 1]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "words"),
    [("tape_unweighed", "nothing says what they weigh")],
)
def test_a_tape_that_no_replica_can_take_is_refused_in_a_line(
    name: str, words: str, verify: Verify
) -> None:
    code, figures, text = verify(name, "--strategy", "mirrored")
    assert code == 1
    assert figures["strategies"][0]["verdict"] == "REFUSED", text
    assert words in figures["strategies"][0]["reason"]
    assert "strategy.train_step" in text
    assert "Traceback" not in text


def recorded(name: str, folder: Path, *given: str) -> Ran:
    """A script under single, as it is recorded."""
    script, root = folder / f"{name}.py", folder / f"{name}-left"
    script.write_text(ALL[name])
    root.mkdir()
    ran = ScriptRunner(parse([str(script), *given]), root).single()
    assert isinstance(ran, Ran), ran
    return ran


def test_autocast_inside_a_model_is_what_it_computes_in(tmp_path: Path) -> None:
    """Or equal would mean what rounding does in float32."""
    assert recorded("autocast_inside", tmp_path, "--steps", "1").first.dtype == "bfloat16"


@pytest.mark.parametrize("name", ["torch_scaler", "keras_scaler"])
def test_a_scaled_loss_is_recorded_as_the_script_computed_it(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Scaled before or behind a division, and in a graph of TensorFlow's."""
    of_one_parent(name, monkeypatch)
    losses = recorded(name, tmp_path, "--steps", "8").losses
    told = [float(line) for line in (tmp_path / f"{name}.py.1").read_text().split()]
    assert len(losses) >= 5
    assert losses == pytest.approx(told[: len(losses)], rel=1e-6)


@pytest.mark.parametrize("name", ["torch_frozen", "keras_frozen"])
def test_what_is_frozen_has_no_gradients_to_send(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nor have BatchNorm's statistics: its scale and shift do, and the last layer."""
    of_one_parent(name, monkeypatch)
    ran = recorded(name, tmp_path, "--steps", "2")
    assert ran.first.gradient_bytes == 4 * (2 * 16 + 16 * 4 + 4)


def test_recording_changes_no_number(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    saved = (
        "\n    import numpy as np, sys\n    np.savez(sys.argv[1], **strategy.full_state(model))\n"
    )
    script.write_text("import torch; torch.manual_seed(5)\n" + EQUAL["torch_step"] + saved)
    plain = tmp_path / "plain.npz"
    job = Job(command=("script", str(script), str(plain)), n=2, strategy="mirrored", show="none")
    assert run(job).exit_code == 0
    asked = parse([str(script), "--steps", "1000", str(tmp_path / "again.npz")])
    (tmp_path / "root").mkdir()
    recorded = ScriptRunner(asked, tmp_path / "root").run(Placement("mirrored", 2))
    assert isinstance(recorded, Ran), recorded
    assert not recorded.first.stopped
    with np.load(plain) as arrays:
        assert dict(arrays).keys() == recorded.parameters[0].keys()
        for name, value in arrays.items():
            assert np.array_equal(value, recorded.parameters[0][name]), name


HOOKS = {
    "torch_step": """
import torch
hooks = lambda: (torch.nn.Module.__call__, torch.autograd.backward)
""",
    "keras_fit": """
import keras, tensorflow as tf
compiled = type(tf.function(lambda: None))
hooks = lambda: (keras.Model.__call__, keras.Model.train_on_batch, tf.GradientTape.gradient,
                 compiled.__call__)
""",
}
"""What a recorder changes, by script."""


@pytest.mark.parametrize("name", HOOKS)
def test_nothing_is_in_the_path_of_a_script_that_is_not_verified(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    of_one_parent(name, monkeypatch)
    script = tmp_path / "script.py"
    script.write_text(
        HOOKS[name]
        + "before = hooks()\n"
        + EQUAL[name]
        + "\nimport dream._observers, sys\nassert not dream._observers.registered\n"
        "assert all(a is b for a, b in zip(before, hooks(), strict=True))\n"
        "assert not [name for name in sys.modules if name.startswith('dream.tools')]\n"
    )
    job = Job(command=("script", str(script)), n=1, strategy="single", show="none")
    assert run(job).exit_code == 0


def test_options_before_and_after_the_script_and_its_own() -> None:
    asked = parse(
        ["-n", "3", __file__, "--steps", "5", "--lr", "0.1", "--strategy", "horovod", "x", "--",
         "--steps", "7"]
    )  # fmt: skip
    assert asked.command == ("script", __file__, "--lr", "0.1", "x", "--steps", "7")
    assert (asked.n, asked.steps, asked.strategies) == (3, 5, ("horovod",))
    module = parse(["--steps", "5", "-m", "pack.train", "-m", "resnet"])
    assert (module.command, module.steps) == (("module", "pack.train", "-m", "resnet"), 5)
    assert parse([__file__, "-m", "resnet"]).command == ("script", __file__, "-m", "resnet")


@pytest.mark.parametrize(
    ("given", "words"),
    [
        (["no.py"], "No such script"),
        ([__file__, "-n", "0"], "-n 0"),
        ([__file__, "--steps", "0"], "--steps 0"),
        ([__file__, "--json", "no/where.json"], "A file cannot be written"),
        ([__file__, "--json", "/proc/out.json"], "A file cannot be written"),
        ([__file__, "--timeout", "nan"], "--timeout nan"),
        ([__file__, "-n", "1000000"], "would overload this machine"),
        ([__file__, "--strategy", "mirrored:reduction=gl"], "Unknown reduction"),
        ([__file__, "--strategy", "mirored"], "Did you mean 'mirrored'"),
        ([__file__, "--strategy", "mirrored", "-n", "1"], "One replica is the same as single"),
    ],
)
def test_what_cannot_be_is_refused_at_once(given: list[str], words: str) -> None:
    from dream.tools.verify.main import main as command

    with pytest.raises(ConfigurationError, match=words):
        command(given)
