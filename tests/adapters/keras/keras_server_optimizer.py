"""Keras optimizers as names and numbers: what comes back is the same optimizer, and hostile
descriptions make nothing. A script of its own; KERAS_BACKEND is its caller's.

Usage: keras_server_optimizer.py FOLDER
"""

from __future__ import annotations

import pickle
import re
import sys
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
from keras.optimizers import schedules

from dream import Unsupported
from dream._plain import Garbled, pack
from dream.adapters.keras.asynchronous.optimizer import KerasOptimizerSpec, describe, make


class Mine(keras.optimizers.SGD):  # type: ignore[misc]
    """The script's own."""

    def __init__(self, *args: Any, boost: float = 2.0, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.boost = boost

    def get_config(self) -> dict[str, Any]:
        return {**super().get_config(), "boost": self.boost}


class Ramp(schedules.LearningRateSchedule):  # type: ignore[misc]
    def __init__(self, steps: int) -> None:
        self.steps = steps

    def __call__(self, step: Any) -> Any:
        return keras.ops.minimum(1.0, keras.ops.cast(step, "float32") / self.steps)

    def get_config(self) -> dict[str, Any]:
        return {"steps": self.steps}


class Nested(Ramp):
    def get_config(self) -> dict[str, Any]:
        return {"steps": 3, "inner": schedules.serialize(Ramp(2))}


class Bomb:
    """Unpickled, it makes a file."""

    def __init__(self, file: Path) -> None:
        self._file = file

    def __reduce__(self) -> Any:
        return Path.touch, (self._file,)


def variables(constraint: Any = None) -> list[Any]:
    variable = keras.Variable(np.ones((2, 3)), dtype="float32", name="kernel")
    variable.constraint = constraint
    return [variable]


def sent(optimizer: Any, constraint: Any = None) -> Any:
    """The optimizer on the other side."""
    own = variables(constraint)
    optimizer.build(own)
    made, there = make(KerasOptimizerSpec.of(describe(optimizer, own), 6))
    assert [v.path for v in there] == [v.path for v in own]
    return made


def refused(act: Any, kind: type[Exception], words: str) -> None:
    with pytest.raises(kind, match=re.escape(words)):
        act()


mine = sent(Mine(0.25, momentum=0.5, boost=3.0))
assert type(mine) is Mine
assert (mine.boost, mine.momentum, float(mine.learning_rate)) == (3.0, 0.5, 0.25)
decay = sent(keras.optimizers.Adam(schedules.ExponentialDecay(0.1, 5, 0.7)))
assert isinstance(decay._learning_rate, schedules.ExponentialDecay)
assert sent(Mine(Ramp(4)))._learning_rate.steps == 4
own = variables(keras.constraints.MaxNorm(1.5))
sgd = keras.optimizers.SGD(0.1)
sgd.build(own)
((there,), told) = (
    make(KerasOptimizerSpec.of(describe(sgd, own), 6))[1],
    KerasOptimizerSpec.of(describe(sgd, own), 6),
)
assert there.constraint.max_value == 1.5

# on the worker
refused(lambda: sent(Mine(lambda: 0.1)), Unsupported, "no LearningRateSchedule")
refused(lambda: sent(Mine(0.1), lambda w: w), Unsupported, "the constraint of kernel")
refused(lambda: sent(Mine(Nested(3))), Unsupported, "whose configuration holds an object")
refused(lambda: sent(Mine(0.1, boost=object())), Unsupported, "Mine with something of type object")

# on a server, from whoever knows the way in
file = Path(sys.argv[1]) / "made"
held = [("kernel", (2, 3), "float32", None, True)]
plain = {"learning_rate": 0.1}
evil = {
    "class_name": "Lambda",
    "module": "keras.layers",
    "config": {"function": "os.system"},
    "registered_name": None,
}


def told_by(kind: str, config: Any, schedule: Any = None, variables: Any = held) -> Any:
    return make(KerasOptimizerSpec.of(pack((kind, config, schedule, variables, {})), 6))


sgd_name = told.kind
told_by(sgd_name, plain)
refused(lambda: told_by("os:system", plain), Unsupported, "'os:system'")
refused(lambda: told_by("json.tool:Optimizer", plain), Unsupported, "'json.tool:Optimizer'")
assert "json.tool" not in sys.modules
refused(lambda: told_by(sgd_name, {"learning_rate": evil}), Unsupported, "holds an object")
refused(lambda: told_by(sgd_name, {"a": [(evil,)]}), Unsupported, "holds an object")
refused(lambda: told_by(sgd_name, plain, ("os:system", {})), Unsupported, "'os:system'")
refused(lambda: told_by(sgd_name, plain, (sgd_name, {})), Unsupported, "no such LearningRate")
refused(lambda: told_by(sgd_name, plain, 3), Garbled, "Received: what is not")
large = [("kernel", (1 << 40,), "float32", None, True)]
refused(lambda: told_by(sgd_name, plain, None, large), Garbled, "an optimizer over 6 elements")
refused(lambda: KerasOptimizerSpec.of(pickle.dumps(Bomb(file)), 6), Garbled, "")
assert not file.exists()
print("all held")
