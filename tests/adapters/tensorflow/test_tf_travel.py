"""What compression and Adasum make of gradients is what they make of them in torch."""

from __future__ import annotations

import numpy as np
import pytest
import tf_travel

import dream

pytestmark = [pytest.mark.slow, pytest.mark.exhaustive]
CLOSE = [1e-7, 1e-4, 1e-3, 1e-7]
"""How near, by option: where sums are rounded, the last bit of half precision."""


@pytest.mark.parametrize("ranks", [2, 4])
def test_the_numbers_are_those_of_torch(ranks: int) -> None:
    of = {
        name: dream.launch(
            tf_travel.moved, name, "shared_memory", n=ranks, framework=name, timeout=500
        )
        for name in ("torch", "tensorflow")
    }
    for mine in of["tensorflow"]:
        for index, options in enumerate(tf_travel.OPTIONS):
            right = of["torch"][0][index]
            assert np.abs(right).max() > 1e-2, options
            assert np.array_equal(mine[index], of["tensorflow"][0][index]), options
            np.testing.assert_allclose(
                mine[index], right, rtol=0, atol=CLOSE[index], err_msg=str(options)
            )
