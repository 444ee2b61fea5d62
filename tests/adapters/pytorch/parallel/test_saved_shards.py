"""Files that a plain script saves of a model in shards are those of one device."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import pytest
import saved_shards as cases
import torch

import dream

pytestmark = pytest.mark.slow
RANKS = [2, pytest.param(3, marks=pytest.mark.exhaustive)]
FILES = ["last", "best", "on", "parameters", "numpy", "told"]


@cache
def _folder(at: Path, ranks: int) -> Path:
    """Files of the ranks, and of the script by itself."""
    folder = at / str(ranks)
    folder.mkdir()
    dream.launch(cases.written, str(folder), n=ranks, framework="torch", timeout=300)
    return folder


@cache
def _alone(at: Path, model: str, make: cases.Make) -> Path:
    folder = at / f"{model} {make.__name__}"
    folder.mkdir()
    cases.script(folder, model, make)
    return folder


@pytest.fixture(scope="module")
def at(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("saved")


@pytest.mark.parametrize("ranks", RANKS)
@pytest.mark.parametrize("way", cases.WAYS)
@pytest.mark.parametrize("file", FILES)
def test_a_file_is_that_of_the_plain_script(at: Path, ranks: int, way: str, file: str) -> None:
    """It was refused, at the first file: of an hour's training, the one at its end."""
    *_, model, make = cases.WAYS[way]
    if way == "tensor" and ranks == 3:
        pytest.skip("eight columns are not cut in three")
    whole = file not in ("last", "told")
    ours = torch.load(_folder(at, ranks) / way / f"{file}.pt", weights_only=whole)
    plain = torch.load(_alone(at, model, make) / f"{file}.pt", weights_only=whole)
    assert [*_apart(ours, plain)] == []
    assert getattr(ours, "_metadata", None) == getattr(plain, "_metadata", None)


def _apart(ours: Any, plain: Any, name: str = "") -> Any:
    """Names of what differs, in a file or in a part of it."""
    if type(ours) is not type(plain):
        yield f"{name}: {type(ours)} {type(plain)}"
    elif isinstance(plain, torch.Tensor):
        alike = (ours.shape, ours.dtype, ours.requires_grad, ours.is_leaf) == (
            plain.shape, plain.dtype, plain.requires_grad, plain.is_leaf,
        )  # fmt: skip
        if not (alike and torch.allclose(ours, plain, rtol=2e-6, atol=1e-6)):
            yield name
    elif isinstance(plain, dict):
        if [*ours] != [*plain]:
            yield f"{name}: {[*ours]} {[*plain]}"
        for key in {*plain} - {"foreach", "fused"}:  # how, and not what
            yield from _apart(ours[key], plain[key], f"{name}/{key}")
    elif isinstance(plain, list | tuple):
        for index, (one, other) in enumerate(zip(ours, plain, strict=True)):
            yield from _apart(one, other, f"{name}/{index}")
    elif isinstance(plain, cases.Average | cases.Told):
        yield from _apart(vars(ours), vars(plain), f"{name}.of")
    elif isinstance(plain, float):
        if abs(ours - plain) > 1e-6:
            yield name
    elif ours != plain:
        yield name


def test_what_is_tied_is_in_a_file_once(at: Path) -> None:
    state = torch.load(_folder(at, 2) / "zero 3" / "best.pt")
    assert state["words.weight"].data_ptr() == state["head.weight"].data_ptr()


@cache
def _elsewhere(at: Path) -> list[dict[str, Any]]:
    return dream.launch(cases.elsewhere, str(at), n=2, framework="torch", timeout=300)


@pytest.mark.parametrize("where", ["own", "buffer", "inside", "after", "copies"])
def test_it_is_whole_wherever_it_goes(at: Path, where: str) -> None:
    """A copy after the block, and what pickle takes, was this rank's shard, in silence."""
    for rank in _elsewhere(at):
        assert rank[where]


@cache
def _modules(at: Path) -> list[dict[str, Any]]:
    _at(at)
    return dream.launch(cases.modules, str(at / "modules"), n=2, framework="torch", timeout=300)


def _at(at: Path) -> None:
    (at / "modules").mkdir()


@pytest.mark.parametrize("file", ["", " again", " after 0", " after 1"])
@pytest.mark.parametrize("way", ["zero 3", "zero 2"])
def test_a_model_in_a_file_is_an_ordinary_one(at: Path, way: str, file: str) -> None:
    """It was refused. What is read is trained on: that was refused too."""
    _modules(at)
    alone = "alone" + file.replace("1", "0")
    ours, plain = (
        torch.load(at / "modules" / f"{name}.pt", weights_only=False)
        for name in (way + file, alone)
    )
    ours, plain = (x["again"] if isinstance(x, dict) else x for x in (ours, plain))
    assert type(ours) is cases.Recurrent
    assert ours.training == plain.training
    assert ours.same is ours.blocks[1]
    assert [*_apart({**ours.state_dict()}, {**plain.state_dict()})] == []
    x = torch.arange(12).view(3, 4) % 9
    assert torch.allclose(ours(x), plain(x), atol=1e-6)


def test_a_copy_has_the_hooks_of_the_script(at: Path) -> None:
    """They were left out, in silence (5e-1)."""
    for rank in _modules(at):
        assert all(gap == 0.0 for gap in rank.values())


def test_another_thread_is_told_to_leave_it(at: Path) -> None:
    for rank in _elsewhere(at):
        assert rank["thread"].startswith("ConfigurationError: What is in shards is saved in the")


def test_what_cannot_be_pickled_is_said_on_every_rank(at: Path) -> None:
    for rank in _elsewhere(at):
        assert rank["unpickled"].startswith(("AttributeError", "PicklingError", "Configuration"))


def test_a_save_on_rank_0_alone_is_named_at_once(tmp_path: Path) -> None:
    first, second = dream.launch(cases.guarded, str(tmp_path), n=2, framework="torch", timeout=300)
    assert first.startswith("Desynchronized: What is in shards is saved by all ranks together")
    assert "not behind a test of the rank" in first
    assert "rank 0: torch.save(tensors_in_shards=" in second
    assert not (tmp_path / "guarded.pt").exists()
