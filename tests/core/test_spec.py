"""Names and options: what is known is checked, what is not is named with the nearest."""

from __future__ import annotations

import pytest

from dream import ConfigurationError, Unsupported
from dream.strategies.spec import SPECS, find, parse_request
from dream.update.precision import PRECISIONS


def test_an_unknown_strategy_lists_the_known_and_the_nearest() -> None:
    with pytest.raises(ConfigurationError, match=r"'miror'.*Known: .*single.*mean 'mirrored'"):
        find("miror")


def test_an_unknown_option_lists_the_known_and_the_nearest() -> None:
    with pytest.raises(ConfigurationError, match=r"'buket_mb'.*find_unused.*mean 'bucket_mb'"):
        find("mirrored").resolve({"buket_mb": 1})


@pytest.mark.parametrize(("value", "why"), [("5", "wrong type"), (0, "too small"), (-1, "small")])
def test_an_option_of_a_wrong_kind_is_refused(value: object, why: str) -> None:
    with pytest.raises(ConfigurationError, match=why):
        find("mirrored").resolve({"bucket_mb": value})


def test_options_have_defaults() -> None:
    assert find("mirrored").resolve({"bucket_mb": 5}) == {
        "accumulate": 1,
        "clip_norm": None,
        "clip_value": None,
        "precision": "float32",
        "recompute": False,
        "memory_budget": None,
        "sync_batch_norm": None,
        "compression": None,
        "op": "mean",
        "autotune": False,
        "bucket_view": True,
        "static_graph": False,
        "bucket_mb": 5.0,
        "find_unused": False,
        "resync": None,
        "input": "whole",
        "shares": "equal",
        "one_copy": False,
        "cross_device_ops": "auto",
        "strict": False,
    }


def test_a_request_is_parsed_and_checked() -> None:
    assert parse_request("mirrored:reduction=gloo,bucket_mb=2.5,find_unused=true") == (
        "mirrored",
        {"reduction": "gloo", "bucket_mb": 2.5, "find_unused": True},
    )
    assert parse_request("single") == ("single", {})


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("mirrored:gloo", "written name=value"),
        ("mirrored:bucket_mb=much", "wrong type. Received: 'much'"),
        ("mirrored:bucket_mb=0", "too small. Received: 0.0"),
        ("mirrored:clip_norm=nan", "too small. Received: nan"),
        ("mirrored:devices=0", "too small. Received: 0"),
        ("sharded:zero=7", "no such value. Received: 7"),
        ("mirrored:reduction=glo", "Unknown reduction.*mean 'gloo'"),
        ("mirrored:nothing=1", "Unknown option"),
        ("solo", "Unknown strategy"),
    ],
)
def test_a_malformed_request_is_refused(text: str, why: str) -> None:
    with pytest.raises(ConfigurationError, match=why):
        parse_request(text)


def test_a_reduction_of_the_other_framework_is_refused() -> None:
    with pytest.raises(Unsupported, match=r"reduction='grpc'.*gloo"):
        find("mirrored").check_framework({}, "torch", "grpc")
    find("mirrored").check_framework({}, "tensorflow", "grpc")


def test_horovod_takes_no_other_reduction() -> None:
    with pytest.raises(ConfigurationError, match="'gloo'"):
        find("horovod").check_reduction("gloo")


def test_an_option_without_meaning_in_a_framework_is_refused() -> None:
    with pytest.raises(Unsupported, match=r"bucket_mb.*tensorflow.*torch"):
        find("mirrored").check_framework({"bucket_mb": 5.0}, "tensorflow", "auto")


@pytest.mark.parametrize("name", sorted(SPECS))
def test_every_option_has_its_default_and_a_line(name: str) -> None:
    for option in SPECS[name].options:
        assert option.help
        assert option.check(option.default) == option.default


def test_a_value_outside_the_choices_lists_them() -> None:
    with pytest.raises(ConfigurationError, match=r"'wide'.*'pipeline', 'tensor', 'layers'"):
        find("model_parallel").resolve({"split": "wide"})


def test_what_only_a_script_can_write_is_taken() -> None:
    assert find("hybrid").resolve({"stages": ["a", "b"]})["stages"] == ["a", "b"]
    assert find("hybrid").resolve({"plan": {"fc1": "column"}})["plan"] == {"fc1": "column"}


def test_options_that_break_each_other_are_refused() -> None:
    with pytest.raises(ConfigurationError, match=r"clip_norm=1.0, clip_value=0.5.*Remove one"):
        find("mirrored").resolve({"clip_norm": 1.0, "clip_value": 0.5})
    with pytest.raises(ConfigurationError, match=r"compression='topk', precision='float16'"):
        find("mirrored").resolve({"compression": "topk", "precision": "float16"})


def test_an_option_of_other_strategies_names_them() -> None:
    with pytest.raises(Unsupported, match=r"'local_sgd'.*'accumulate'.*single, mirrored"):
        find("local_sgd").resolve({"accumulate": 2})


@pytest.mark.parametrize(("text", "value"), [("true", True), ("sqrt", "sqrt"), ("false", False)])
def test_a_word_or_a_truth_is_parsed(text: str, value: object) -> None:
    assert parse_request(f"single:recompute={text}")[1] == {"recompute": value}


@pytest.mark.parametrize("text", ["topk:0", "topk:2", "topk:x", "float16:2", "powersgd:1.5", "zip"])
def test_a_compression_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(ConfigurationError, match=rf"'{text}'.*topk:FRACTION"):
        find("mirrored").resolve({"compression": text})


@pytest.mark.parametrize("names", [[], [1]])
def test_layers_to_recompute_have_names(names: object) -> None:
    with pytest.raises(ConfigurationError, match=r"named_modules.*'sqrt'"):
        find("single").resolve({"recompute": names})


def test_the_first_level_is_float16_by_another_name() -> None:
    assert PRECISIONS["O1"] == PRECISIONS["float16"]
