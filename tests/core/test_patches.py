"""Functions of a framework's that the script has by names of its own, and the values that a
function finds where it was made."""

from __future__ import annotations

import inspect
import random
import sys
from concurrent.futures import ThreadPoolExecutor
from contextvars import ContextVar
from types import ModuleType

import pytest

from dream._patches import bound_to, first_use, in_this_context, value_set

_VALUE: ContextVar[int] = ContextVar("value", default=0)


@pytest.mark.parametrize(("file", "found"), [("/home/me/tokenize.py", True), ("", False)])
def test_a_scripts_module_of_the_name_of_pythons_is_looked_into(
    file: str, found: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = ModuleType("tokenize")
    module.__file__ = file or sys.modules["inspect"].__file__
    module.copied = inspect.cleandoc  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "tokenize", module)
    places = bound_to([inspect.cleandoc], "torch")[id(inspect.cleandoc)]
    assert ((module, "copied") in places) == found


def test_a_method_that_was_looked_up_again_is_the_same_function(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    script = ModuleType("a_script")
    script.draw = random.random.__self__.random  # type: ignore[attr-defined]
    assert script.draw is not random.random  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "a_script", script)
    assert (script, "draw") in bound_to([random.random], "random")[id(random.random)]


def test_a_function_finds_the_values_of_where_it_was_made() -> None:
    def found(times: int = 1) -> list[int]:
        return [_VALUE.get(), *(again(times - 1) if times else [])]

    with value_set(_VALUE, 3):
        again = in_this_context(found)
    with ThreadPoolExecutor(1) as thread:
        assert thread.submit(found, 0).result() == [0]
        assert thread.submit(again).result() == [3, 3]  # it calls itself within
    assert again(0) == [3]
    assert _VALUE.get() == 0


def test_what_tells_of_its_first_use_looks_as_before() -> None:
    """Keras looks at how a layer's class is made."""

    class Made:
        def __init__(self, width: int = 2) -> None:
            self.width = width

    before = inspect.getfullargspec(Made.__init__)
    found: list[bool] = []
    first_use([(Made, "__init__")], lambda: found.append(True))
    assert inspect.getfullargspec(Made.__init__) == before
    assert (Made(3).width, Made().width, found) == (3, 2, [True])
