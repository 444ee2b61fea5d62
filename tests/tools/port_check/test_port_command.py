"""`dream port-check` and `dream.port_check` from outside: files, exit codes, what is printed."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import port_torch
import pytest
from porting_kit import BATCHES, place

import dream
from dream import ConfigurationError
from dream.cli import main
from dream.tools.port_check.check import PortCheckRequest
from dream.tools.port_check.match import pads

Run = Callable[..., tuple[int, str]]


@pytest.fixture
def batch(tmp_path: Path) -> Path:
    np.savez(tmp_path / "batch.npz", **BATCHES["dense"])
    return tmp_path / "batch.npz"


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Run:
    """The command's exit code and all that it prints."""

    def command(*arguments: object) -> tuple[int, str]:
        with pytest.raises(SystemExit) as ended:
            main(["port-check", *map(str, arguments)])
        shown = capsys.readouterr()
        return int(ended.value.code or 0), shown.out + shown.err

    return command


def test_equal_models_end_with_0(run: Run, batch: Path, tmp_path: Path) -> None:
    file = tmp_path / "out.json"
    code, text = run(place("torch:dense"), place("torch:dense"), "--batch", batch, "--json", file)
    assert code == 0, text
    assert "Equal: 2 layers, their outputs and their gradients." in text
    found = json.loads(file.read_text())
    assert found["equal"]
    assert [(x["old"], x["kind"]) for x in found["layers"]] == [("first", "dense"),
                                                                ("second", "dense")]  # fmt: skip
    assert found["outputs"][0]["largest"] == 0
    assert found["inputs"] == {"x": [[5, 6], [5, 6]]}


def test_models_that_differ_end_with_1_and_the_place(run: Run, batch: Path) -> None:
    code, text = run(place("torch:dense"), place("torch:wrong_gelu"), "--batch", batch)
    assert code == 1, text
    assert "First layer that differs: second / second (dense)" in text
    assert "The activation differs: old gelu (exact), new gelu (tanh)." in text


def test_layers_that_do_not_match_end_with_2(run: Run, batch: Path) -> None:
    code, text = run(place("torch:dense"), place("torch:wrong_units"), "--batch", batch)
    assert code == 2, text
    assert "bias (3), kernel (8, 3)" in text
    assert "bias (4), kernel (8, 4)" in text


def test_layers_that_cannot_be_matched_end_with_2(run: Run, batch: Path) -> None:
    code, text = run(place("torch:dense"), place("torch:normed"), "--batch", batch)
    assert code == 2, text
    assert "parametrized" in text


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["no.py:f", "no.py:f"], "There is no such file"),
        (["nothing", place("torch:dense")], "file.py:function or module:function"),
        ([place("torch:dense")] * 2 + ["--map", "no.json"], "The map must be a JSON file"),
        ([place("torch:dense")] * 2 + ["--tolerance", "-1"], "not be negative"),
        ([place("torch:dense")] * 2 + ["--new-backend", "troch"], "Did you mean 'torch'"),
        ([place("torch:dense")] * 2 + ["--json", "no/where.json"], "A file cannot be written"),
    ],
)
def test_what_cannot_be_is_refused_at_once(
    run: Run, batch: Path, arguments: list[str], words: str
) -> None:
    code, text = run(*arguments, "--batch", batch)
    assert code == 2
    assert words in text


def test_a_batch_is_a_file_of_arrays(run: Run, tmp_path: Path) -> None:
    (tmp_path / "no.npz").write_text("nothing")
    code, text = run(*[place("torch:dense")] * 2, "--batch", tmp_path / "no.npz")
    assert code == 2
    assert "The batch must be a .npz file" in text
    with pytest.raises(ConfigurationError, match=r"no inputs.*a batch with y"):
        PortCheckRequest(place("torch:dense"), place("torch:dense"), {"y": np.ones(3)})


def test_functions_may_be_given_themselves() -> None:
    report = dream.port_check(port_torch.dense, port_torch.dense, BATCHES["dense"])
    assert report.equal
    assert "Equal: 2 layers" in str(report)
    with pytest.raises(ConfigurationError, match="separate process"):
        dream.port_check(lambda: None, port_torch.dense, BATCHES["dense"])


@pytest.mark.parametrize(
    ("padding", "size", "stride", "dilation", "expected"),
    [
        ("valid", 8, 1, 1, (0, 0)),
        ("same", 8, 1, 1, (1, 1)),
        ("same", 8, 2, 1, (0, 1)),
        ("same", 7, 2, 1, (1, 1)),
        ("same", 8, 1, 2, (2, 2)),
        ("causal", 8, 1, 2, (4, 0)),
        (((3, 3),), 8, 1, 1, (3, 3)),
    ],
)
def test_padding_in_one_word_or_in_numbers(
    padding: object, size: int, stride: int, dilation: int, expected: tuple[int, int]
) -> None:
    settings = {"padding": padding, "strides": (stride,), "dilation": (dilation,)}
    assert pads(settings, (3,), (size,)) == (expected,)
