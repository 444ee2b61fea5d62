"""The adapters' half of the layouts: on their own tensors, with gradients and in a graph; and
models described without a batch."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent
TORCH = """
import port_torch, torch
from dream.adapters.pytorch.model_description import model as canonical
from dream.model_description.layers import from_canonical, to_canonical

for name in ("gru", "attention", "conv_groups", "generator", "embedding"):
    model = getattr(port_torch, name)()
    held = canonical.tensors(model)
    for layer in canonical.describe(model).layers:
        own = {p.name: held[p.name] for p in layer.parameters}
        roles = to_canonical(layer, own, canonical.OPS)
        assert {role: tuple(x.shape) for role, x in roles.items()} == layer.roles
        back = from_canonical(layer, roles, canonical.OPS)
        assert all(torch.equal(back[n], own[n]) for n in own), layer
        floats = [x for x in roles.values() if x.requires_grad]
        sum((x * torch.arange(x.numel()).reshape(x.shape)).sum() for x in floats).backward()
        slopes = {n: x.grad for n, x in own.items() if x.requires_grad}
        for x in to_canonical(layer, slopes, canonical.OPS, "gradient").values():
            assert torch.equal(x, torch.arange(x.numel()).reshape(x.shape).float()), layer
tied = torch.nn.ModuleList([torch.nn.Embedding(5, 3), torch.nn.Linear(3, 5, bias=False)])
tied[1].weight = tied[0].weight
first, second = canonical.describe(tied).layers
assert (first.parameters[0].same_as, second.parameters[0].same_as) == ("", "0.weight")
"""
KERAS = """
import keras, port_keras
from dream import ConfigurationError
from dream.adapters.keras.model_description import model as canonical
from dream.model_description.layers import from_canonical, to_canonical
from porting_kit import BATCHES

graph = lambda function: function
if keras.backend.backend() == "tensorflow":
    from tensorflow import function as graph

def there_and_back(layer, variables):
    own = {p.name: variables[p.name].value for p in layer.parameters}
    @graph
    def both():
        roles = to_canonical(layer, own, canonical.OPS)
        return roles, from_canonical(layer, roles, canonical.OPS)
    return both()

for name in ("gru", "attention", "separable", "conv_groups", "generator", "conv2d", "batch_norm"):
    model = getattr(port_keras, name)()
    alone = canonical.describe(model)
    assert canonical.describe(model, BATCHES[name]["x"]) == alone, name
    variables = canonical.variables(model)
    for layer in alone.layers:
        roles, back = there_and_back(layer, variables)
        assert {role: tuple(x.shape) for role, x in roles.items()} == layer.roles
        for n, x in back.items():
            assert bool(keras.ops.all(x == variables[n].value)), layer
assert alone.layers[-1].flattened == (6, 6, 4)

class Flat(keras.Model):
    def __init__(self):
        super().__init__()
        self.flat, self.dense = keras.layers.Flatten(), keras.layers.Dense(2)
    def call(self, x):
        return self.dense(self.flat(x))

model = Flat()
for built in (False, True):
    try:
        canonical.describe(model)
    except ConfigurationError as error:
        assert ("seen by a call only" if built else "not built") in str(error), error
    else:
        raise AssertionError("described")
    (layer,) = canonical.describe(model, keras.ops.ones((1, 2, 3, 4))).layers
    assert layer.flattened == (2, 3, 4)

from dream import Unsupported
from dream.strategies import registry
from dream.adapters.keras.tools.port_check import KerasProbe
registry.GRADIENTS = {}
try:
    KerasProbe(model, {}, as_is=False)
except Unsupported as error:
    assert f"Keras on {keras.backend.backend()}" in str(error)
else:
    raise AssertionError("no gradients, and no word")
"""


ON_TENSORFLOW = pytest.param(KERAS, "tensorflow", marks=pytest.mark.slow)
ON_TORCH = pytest.param(KERAS, "torch", marks=pytest.mark.slow)


@pytest.mark.parametrize(("script", "backend"), [(TORCH, "torch"), ON_TENSORFLOW, ON_TORCH])
def test_layouts_on_the_frameworks_own_tensors(script: str, backend: str) -> None:
    quiet = {"TF_CPP_MIN_LOG_LEVEL": "3", "TF_ENABLE_ONEDNN_OPTS": "0"}
    done = subprocess.run(
        [sys.executable, "-c", script], env=os.environ | quiet | {"KERAS_BACKEND": backend},
        capture_output=True, text=True, timeout=500, cwd=HERE,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
