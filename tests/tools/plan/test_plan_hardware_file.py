"""Hardware of the user's own is what a preset of the same figures is; bad files are refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from dream import ConfigurationError
from dream.tools.plan import hardware, hardware_file

T4 = {
    "memory": "16GB", "tflops": {"float32": 8.1, "float16": 65}, "bandwidth": 320, "per_host": 4,
    "link": 15.75, "link_latency": 5.7, "network": 50,
}  # fmt: skip
TOML = """
name = "mine"
memory = "16GB"
bandwidth = 320
per_host = 4
link = 15.75
link_latency = 5.7
network = 50
tflops = {float32 = 8.1, float16 = 65}
"""


def test_a_file_says_what_a_preset_says(tmp_path: Path) -> None:
    toml, same = tmp_path / "mine.toml", tmp_path / "mine.json"
    toml.write_text(TOML)
    same.write_text(json.dumps({**T4, "source": "a datasheet"}))
    preset = hardware.preset("t4")
    for place in (toml, same):
        assert hardware_file.is_file(str(place))
        found = hardware_file.read(str(place))
        assert found.name == "mine"
        for name in ("memory", "flops", "bandwidth", "per_host", "call"):
            assert getattr(found, name) == getattr(preset, name)
        assert found.host is None
        assert found.near.bandwidth == preset.near.bandwidth
        assert found.near.latency == pytest.approx(preset.near.latency)
        assert found.far == preset.far
    toml.write_text(f"{TOML}host_link = 15.75\n")
    assert hardware_file.read(str(toml)).host == preset.host
    assert any("a datasheet" in source for source in found.sources)


def test_shares_of_the_peaks_may_be_its_own(tmp_path: Path) -> None:
    place = tmp_path / "mine.json"
    place.write_text(json.dumps({**T4, "flops_reached": 0.25, "bandwidth_reached": 0.4}))
    found, preset = hardware_file.read(str(place)), hardware.preset("t4")
    assert found.rates("float32")["matmul"] == preset.rates("float32")["matmul"] / 2
    assert found.bandwidth == preset.bandwidth / 2
    assert any("25%" in source and "40%" in source for source in found.sources)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"memry": 1}, "'memry', which is none of: memory"),
        ({"network": None}, "no 'network'"),
        ({"memory": 16}, "with its unit"),
        ({"memory": "much"}, "This is no size"),
        ({"tflops": {"float8": 1}}, "peaks by precision"),
        ({"tflops": {"float32": 0}}, "float32=0"),
        ({"bandwidth": "fast"}, "bandwidth='fast'. Give a number above 0"),
        ({"bandwidth": True}, "bandwidth=True"),
        ({"per_host": 1.5}, "a whole number of devices"),
        ({"flops_reached": 1.5}, "at most 1"),
    ],
)
def test_what_describes_no_hardware_is_refused(
    change: dict[str, Any], words: str, tmp_path: Path
) -> None:
    place = tmp_path / "mine.json"
    given = {name: value for name, value in {**T4, **change}.items() if value is not None}
    place.write_text(json.dumps(given))
    with pytest.raises(ConfigurationError) as refused:
        hardware_file.read(str(place))
    assert words in str(refused.value)
    assert "Received: " in str(refused.value)


@pytest.mark.parametrize(
    ("name", "text"), [("bad.json", "{"), ("bad.toml", "="), ("list.json", "[]")]
)
def test_what_is_no_table_is_refused(name: str, text: str, tmp_path: Path) -> None:
    (tmp_path / name).write_text(text)
    with pytest.raises(ConfigurationError, match="describes no hardware"):
        hardware_file.read(str(tmp_path / name))
    with pytest.raises(ConfigurationError, match="cannot be read"):
        hardware_file.read(str(tmp_path / f"not_{name}"))
