"""Functions of a framework's that the script has by names of its own."""

from __future__ import annotations

import random
import sys
from types import ModuleType

import pytest

from dream._patches import bound_to


def test_a_method_that_was_looked_up_again_is_the_same_function(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    script = ModuleType("a_script")
    script.draw = random.random.__self__.random  # type: ignore[attr-defined]
    assert script.draw is not random.random  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "a_script", script)
    assert (script, "draw") in bound_to([random.random], "random")[id(random.random)]
