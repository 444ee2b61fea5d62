"""What is read of a script's functions leaves nothing behind in them."""

from __future__ import annotations

import sys
from typing import Any
from weakref import ref

import torch

from dream.adapters.pytorch.randomness.words import variables_of


def names_here() -> Any:
    return variables_of(sys._getframe(1))


def test_what_a_script_deletes_is_gone_though_its_names_were_read() -> None:
    large = torch.zeros(3)
    gone = ref(large)
    assert "large" in names_here()
    del large
    assert gone() is None


def test_what_a_script_has_of_its_own_names_stays() -> None:
    rate = 0.1
    own = locals()
    names_here()
    assert own["rate"] == rate
    assert names_here()["own"] is own


def test_a_modules_names_are_its_own() -> None:
    frame = {"names_here": names_here}
    exec("names = names_here()", frame)
    assert frame["names"] is frame
