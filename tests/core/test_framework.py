"""What a script makes and uses decides its framework; what libraries import does not. And
libraries that distribute by themselves are refused, whenever they are imported."""

from __future__ import annotations

from pathlib import Path

import launch_scripts
import pytest

LOADER = """
from torch.utils.data import DataLoader, TensorDataset
loader = DataLoader(TensorDataset(torch.ones(6, 4), torch.ones(6, 1)), batch_size=4)
assert [len(x) for x, _ in loader] == [4, 2]  # Keras on TensorFlow trains on such, too
"""
TORCH = f"""{LOADER}
from torch import nn
model = nn.Linear(4, 1)
torch.optim.SGD(model.parameters())
assert [len(x) for x, _ in loader] == [2, 1]
"""
KERAS = f"""{LOADER}
class Own(keras.Model):
    def __init__(self):
        super().__init__()
        self.layer = keras.layers.Dense(1)
    def call(self, x):
        return self.layer(x)
model = Own()
assert 'fit' in vars(model)  # the block's
assert len(model.predict(loader)) == 6
"""


@pytest.mark.parametrize(("made", "framework"), [(TORCH, "torch"), (KERAS, "tensorflow")])
def test_the_first_thing_made_decides(made: str, framework: str, tmp_path: Path) -> None:
    inner = "".join(f"    {line}\n" for line in made.strip().splitlines())
    script = launch_scripts.write(
        tmp_path,
        "import torch, keras, tensorflow, dream\nwith dream.strategy('mirrored') as strategy:\n"
        "    assert 'framework=None' in repr(strategy)\n"
        f"{inner}    print('decided', repr(strategy))\n",
    )
    done = launch_scripts.dream("run", "-n", "2", script, env={"KERAS_BACKEND": "tensorflow"})
    assert done.returncode == 0, done.stderr
    assert f"framework={framework!r}" in done.stdout


@pytest.mark.parametrize("before", [False, True])
def test_a_library_that_distributes_by_itself_is_refused(before: bool, tmp_path: Path) -> None:
    package = tmp_path / "accelerate"
    package.mkdir()
    (package / "__init__.py").write_text("from accelerate.accelerator import Accelerator\n")
    (package / "accelerator.py").write_text("class Accelerator:\n    def prepare(self): pass\n")
    bring = "from accelerate import Accelerator\n"
    script = launch_scripts.write(
        tmp_path,
        f"import torch, dream\n{bring if before else ''}"
        "with dream.strategy('mirrored'):\n"
        f"    {bring}"
        "    for use in (Accelerator, lambda: Accelerator.prepare(None)):\n"
        "        try: use()\n"
        "        except dream.Unsupported as error: print('refused', error)\n"
        "Accelerator().prepare()\n",
    )
    done = launch_scripts.dream("run", "-n", "2", script, env={"PYTHONPATH": str(tmp_path)})
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("refused Accelerate distributes training by itself") == 2
