"""One process on several devices: the four primitives, memory, branches at the same time."""

from __future__ import annotations

import pickle
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.slow
SCRIPT = Path(__file__).with_name("layer_devices.py")


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> Any:
    file = tmp_path_factory.mktemp("devices") / "found.pickle"
    command = [sys.executable, "-W", "error", str(SCRIPT), str(file)]
    subprocess.run(command, check=True, timeout=600)
    return pickle.loads(file.read_bytes())


def test_the_primitives_put_together_give_the_models_gradients(found: Any) -> None:
    by_hand = found["primitives"]
    assert by_hand["sizes"] == [5, 5, 3]
    assert by_hand["notes"] == ["kept"] * 3
    assert by_hand["few"] == 2
    assert by_hand["gradients"] < 1e-7
    assert by_hand["scalars"] == [1.0, 2.0]
    assert by_hand["own"]
    assert by_hand["error"] == ("KeyError", "1")
    assert "rows" in by_hand["rows"][1]


def test_no_device_holds_every_output(found: Any) -> None:
    """The loop shows what DataParallel does, so that the measurement can fail."""
    first, second = found["memory"]["step"]
    assert first < 1.1 * second
    first, second = found["memory"]["loop"]
    assert first > 1.5 * second


@pytest.mark.parametrize("way", ["loop", "step"])
@pytest.mark.parametrize("pass_", ["forward", "backward"])
def test_independent_branches_overlap_in_time(found: Any, way: str, pass_: str) -> None:
    notes = found["overlap"][way]["notes"]
    (left, first), (right, second) = (notes[f"{name} {pass_}"] for name in ("left", "right"))
    assert first.startswith("dream-device-0")
    assert second.startswith("dream-device-1")
    assert left, "they ran one after the other"
    assert right, "they ran one after the other"
    assert found["overlap"][way]["apart"] == 0.0


def test_rows_side_by_side_equal_one_device(found: Any) -> None:
    assert found["rows"]["apart"] < 1e-6
    assert found["rows"]["threads"] == ["dream-device-1", "dream-device-3"]


def test_samples_along_another_dim_are_not_cut(found: Any) -> None:
    assert found["sequences_first"]["apart"] == 0.0


@pytest.mark.parametrize(
    ("what", "words"),
    [
        ("name", ("'head'", "place=")),
        ("left_out", ("'2'", "place=")),
        ("index", ("2 devices", "0 to 1")),
        ("kind", ("'cpu'",)),
        ("mesh", ("data 2 x model 2 = 4, replicas 3",)),
    ],
)
def test_what_cannot_be_placed_is_refused(found: Any, what: str, words: tuple[str, ...]) -> None:
    kind, message = found["refusals"][what]
    assert kind == "ConfigurationError"
    assert "Received" in message
    assert all(word in message for word in words), message
