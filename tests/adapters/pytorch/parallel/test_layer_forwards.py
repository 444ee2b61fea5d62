"""A model on several devices of one process learns what it learns on one, or is refused: torch.fx,
which its forward is followed with, would lose what is not an operation, in silence."""

from __future__ import annotations

import pytest
from layer_forwards import EQUAL, REFUSED, found


@pytest.mark.parametrize("what", EQUAL)
def test_a_forward_learns_what_it_does_on_one_device(what: str) -> None:
    assert found()[what] <= 1e-6


@pytest.mark.parametrize("what", REFUSED)
def test_what_would_be_lost_is_refused(what: str) -> None:
    said = found().get(what, "nothing was raised")
    assert said.startswith("Unsupported: ")
    assert REFUSED[what][2] in said
    assert "Received" in said
