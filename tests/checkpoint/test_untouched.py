"""A script that loads nothing goes on at the next item of its outermost counted loop, and ends with
what it would have ended with; where that cannot be, it is said, and nothing is kept."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import traceback
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dream.checkpoint.untouched import rewriting

SCRIPTS = Path(__file__).with_name("untouched_loops.py")
NOT_KEPT = Path(__file__).with_name("untouched_refused.py")
KEPT = {
    "in_a_function": ["early.log", "history", "kept", "best"],
    "two_optimizers": ["sums"],
    "of_an_object": ["self.losses", "self.model.0.called"],
    "steps_without_a_loader": ["steps"],
    "in_many_places": ["count.count", "options.rate", "every.slotted.0.rate", "Counted.seen"],
}
ON_SEVERAL = ("in_a_function", "of_an_object")
"""The others are held on one rank, which loops and variables do not tell from several, and on two
in `make exhaustive`."""
AS_A_MODULE = "steps_without_a_loader"
"""Started by `-m`, as the others are by their file."""
CASES = [(name, 1 + (name in ON_SEVERAL)) for name in KEPT]
ON_SEVERAL_TOO = [
    pytest.param(name, 2, marks=pytest.mark.exhaustive) for name in KEPT if name not in ON_SEVERAL
]
Undisturbed = Callable[[int, str], Path]
"""By the number of ranks and the name, where one of KEPT has written what it ends with."""
REFUSED = {
    "made_within": "no variable names its model as the loop begins",
    "memory": "held changes from item to item, and is no plain value",
    "left_early": "an item ends within a pass over a loader",
    "best_model": "best changes from item to item, and is no plain value",
    "another_optimizer": "optimizer changes from item to item, and is no plain value",
    "weights_not_copied": "best (held twice) changes from item to item, and is no plain value",
    "one_list_twice": "history (held twice) changes from item to item, and is no plain value",
    "group_added": "a model or an optimizer has other parts than as the loop began",
    "gradients_left": "gradients of one item are left to the next",
    "rates_in_turn": "rates changes from item to item, and is no plain value",
    "own_generator": "the generator draw trains on beside what can be kept",
    "one_item": "its loop was over before anything could be",
}


def run(
    names: str,
    folder: Path,
    ranks: int,
    *,
    kept: bool = True,
    restarts: int = 0,
    script: Path = SCRIPTS,
    **told: str,
) -> subprocess.CompletedProcess[str]:
    """told: what the script reads of variables that no import reads."""
    folder.mkdir(exist_ok=True)
    target = ["-m", script.stem] if names == AS_A_MODULE else [str(script)]
    more = {f"DREAM_TEST_{name.upper()}": text for name, text in told.items()}
    arguments = [sys.executable, "-m", "dream", "run", "-n", str(ranks)]
    if kept:
        arguments += ["--checkpoint", str(folder / "kept"), "--every", "0.001"]
        arguments += ["--max-restarts", str(restarts)]
    return subprocess.run(
        [*arguments, *target, names, str(folder)], env=os.environ | more, cwd=script.parent,
        capture_output=True, text=True, timeout=200, check=False,
    )  # fmt: skip


def read(folder: Path, name: str) -> Any:
    return json.loads((folder / name).read_text())


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Undisturbed:
    @cache
    def ended(ranks: int, on_several: bool) -> Path:
        folder = tmp_path_factory.mktemp("undisturbed")
        names = [name for name in KEPT if (name in ON_SEVERAL) == on_several]
        ran = run(",".join(names), folder, ranks, kept=False)
        assert ran.returncode == 0, ran.stderr
        return folder

    return lambda ranks, name: ended(ranks, name in ON_SEVERAL)


@pytest.mark.slow
@pytest.mark.parametrize(("name", "ranks"), [*CASES, *ON_SEVERAL_TOO])
def test_a_rank_dies_and_all_goes_on(
    undisturbed: Undisturbed, tmp_path: Path, name: str, ranks: int
) -> None:
    options = '["sharded"]' if name == "of_an_object" else '["mirrored"]'
    ran = run(name, tmp_path, ranks, restarts=1, die_at="20", strategy=options)
    assert ran.returncode == 0, ran.stderr
    assert "--checkpoint keeps this training whenever an item of its loop is over" in ran.stderr
    assert re.search(r"is over \(loop \d+ of [\w ]+, in line \d+\)", ran.stderr)
    (on,) = [line for line in ran.stderr.splitlines() if "training goes on with item" in line]
    assert all(each in on for each in KEPT[name]), on
    if "sharded" in options:
        compare(read(tmp_path, name), read(undisturbed(ranks, name), name), 1e-6)
    else:
        assert read(tmp_path, name) == read(undisturbed(ranks, name), name)


@pytest.mark.slow
def test_asked_to_leave_it_goes_on_on_another_number_of_ranks(
    undisturbed: Undisturbed, tmp_path: Path
) -> None:
    left = run("in_a_function", tmp_path, 2, leave_at="14")
    assert left.returncode == 85, left.stderr
    ran = run("in_a_function", tmp_path, 1)
    assert ran.returncode == 0, ran.stderr
    assert "training goes on with item" in ran.stderr
    compare(
        read(tmp_path, "in_a_function"),
        read(undisturbed(2, "in_a_function"), "in_a_function"),
        2e-6,
    )


@pytest.mark.slow
def test_what_cannot_be_gone_on_with_is_said_and_not_kept(tmp_path: Path) -> None:
    names = ",".join([*REFUSED, "in_no_counted_loop"])
    ran = run(names, tmp_path, 1, script=NOT_KEPT)
    assert ran.returncode == 0, ran.stderr
    assert ran.stderr.count("which began without strategy.load:") == 1
    for why in REFUSED.values():
        assert f"keeps nothing of this training, which began without strategy.load ({why})" in (
            ran.stderr
        )
    assert not (tmp_path / "kept").exists()


@pytest.mark.slow
def test_a_loop_that_begins_elsewhere_goes_on_by_itself(tmp_path: Path) -> None:
    ran = run("goes_on_by_itself", tmp_path, 1, restarts=1, die_at="16")
    assert ran.returncode == 0, ran.stderr
    assert "began with [0, 1] when it was saved, and begins with [2, 1] now" in ran.stderr


@pytest.mark.slow
def test_a_second_training_of_a_loop_begins_anew(tmp_path: Path) -> None:
    whole = run("several_folds", tmp_path / "whole", 1, kept=False)
    assert whole.returncode == 0, whole.stderr
    ran = run("several_folds", tmp_path, 1, restarts=1, die_at="27")
    assert ran.returncode == 0, ran.stderr
    assert ran.stderr.count("and this is another one of the same loop") == 2  # in both lives
    assert read(tmp_path, "several_folds") == read(tmp_path / "whole", "several_folds")


def compare(found: Any, expected: Any, atol: float) -> None:
    if isinstance(found, list):
        assert len(found) == len(expected)
        for one, other in zip(found, expected, strict=True):
            compare(one, other, atol)
    else:
        np.testing.assert_allclose(found, expected, rtol=atol, atol=atol)


BODIES = {
    "best = max(best, 1)": {"best"},
    "a = 1\nb = a": set(),
    "b = a\na = 1": {"a"},
    "if b:\n    a = 1": {"a"},
    "if x:\n    a = 1\nelse:\n    a = 2": set(),
    "for x in y:\n    loss = x\nprint(loss)": set(),
    "a += 1": {"a"},
    "while a < 3:\n    a += 1": {"a"},
    "with x as a:\n    b = a": set(),
    "try:\n    a = 1\nexcept E:\n    pass\nprint(a)": {"a"},
    "try:\n    a = 1\nexcept E:\n    raise\nprint(a)": set(),
    "if x:\n    continue\na = 1": {"a"},
    "if x:\n    break\na = 1": {"a"},
    "for x in y:\n    if x:\n        break\na = 1": set(),
    "print([a for a in b])\nb = 1": {"b"},
    "print(sum(a for a in c), lambda b: b)\nfor a in c:\n    b = a": set(),
    "def f():\n    return a\na = f()": {"a"},
}


@pytest.mark.parametrize("body", BODIES)
def test_what_one_item_leaves_to_the_next(body: str) -> None:
    lines = "\n".join(f"        {line}" for line in body.splitlines())
    given: list[Any] = []

    class Loop(list[int]):
        values: dict[str, int] = {}

        def __init__(self, items: range, *told: Any) -> None:
            super().__init__()
            given.append(told)

    source = f"def f():\n    bar = range(3)\n    for i in bar:\n{lines}\n        train()\n"
    scope: dict[str, Any] = {rewriting.LOOP: Loop}
    exec(rewriting.compiled(source.encode(), "script"), scope)
    scope["f"]()
    ((_, _, carried, _),) = given
    assert set(carried) == BODIES[body]


def test_a_marked_script_is_the_script_it_was() -> None:
    """Lines in tracebacks, `else`, loops within loops, and variables that are set again."""

    places: list[str] = []

    class Loop(list[int]):
        values = {"best": 7}

        def __init__(self, items: range, place: str, *_: Any) -> None:
            super().__init__(items)
            places.append(place)

    source = '''"""A docstring."""
from __future__ import annotations
def f(fails):
    best = 0
    for epoch in range(2):
        for step in range(3):
            best += 1
        train = g(best)
        if fails:
            raise ValueError(epoch)
    else:
        best += 100
    return best
def g(best):
    return optimizer.step() if best < 0 else best
class Model:
    def forward(self):
        for i in range(3):
            g(i)
        return range
    def other(self):
        return [i for i in range(3)], self.forward()
'''
    scope: dict[str, Any] = {rewriting.LOOP: Loop}
    exec(rewriting.compiled(source.encode(), "script.py"), scope)
    assert scope["__doc__"] == "A docstring."
    assert scope["f"](False) == 7 + 6 + 100
    scope["Model"]().forward()
    assert places == ["f 1"]
    with pytest.raises(ValueError, match="0") as caught:
        scope["f"](True)
    assert traceback.extract_tb(caught.value.__traceback__)[-1].lineno == 10
