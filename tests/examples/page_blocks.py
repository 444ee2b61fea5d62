"""What a reader of a page has at hand where a block of code stands, and what it writes for `...`.

A block is run as it stands on the page; what is not dream's is added here.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from textwrap import indent

TORCH = """
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, IterableDataset, TensorDataset, get_worker_info
import dream
torch.manual_seed(0)
x = torch.randn(800, 4)
y = x.sum(1, keepdim=True)
train, loss = TensorDataset(x, y), F.mse_loss
def made():
    model = nn.Linear(4, 1)
    return model, torch.optim.SGD(model.parameters(), lr=0.01), DataLoader(train, batch_size=8)
def correct(prediction, target):
    return (prediction - target).abs().mean(1)
class Files(IterableDataset):
    def __iter__(self):
        info = get_worker_info()
        return iter(x[info.id :: info.num_workers])
"""
TRAINS = """optimizer.zero_grad()
loss = F.mse_loss(model(x), y)
loss.backward()
optimizer.step()
"""
MADE = "model, optimizer, batches = made()\n"
KERAS = """
import keras
import numpy as np
import dream
keras.utils.set_random_seed(0)
x, y = np.random.rand(160, 4).astype("float32"), np.random.randint(0, 10, 160)
"""
MADE_SERVED = """loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
test = tf.data.Dataset.from_tensor_slices((x, y)).batch(40)
"""
COMPILED = """
with dream.strategy("mirrored") as strategy:
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(10, "softmax")])
    model.compile("adam", "sparse_categorical_crossentropy")
"""
FILED = (
    KERAS
    + """
import pathlib
import tensorflow as tf
pathlib.Path("train").mkdir(exist_ok=True)
for at in range(4):
    with tf.io.TFRecordWriter(f"train/{at}.tfrecord") as file:
        for row in x[at::4]:
            file.write(row.tobytes())
def parse(record):
    row = tf.io.decode_raw(record, tf.float32)
    row = tf.ensure_shape(row, (4,))
    return row, tf.reduce_sum(row, keepdims=True)
def compiled():
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    return model
"""
)
SERVED = (
    KERAS.replace("keras.utils.set_random_seed(0)\n", "")  # TensorFlow starts in the block
    + """
import tensorflow as tf
batches = [(x[at : at + 40], y[at : at + 40]) for at in range(0, 160, 40)]
def right(prediction, target):
    return keras.metrics.sparse_categorical_accuracy(target, prediction)
def build():
    return keras.Sequential([keras.Input((4,)), keras.layers.Dense(10)])
def train(strategy, model):
    step = strategy.train_step(model, loss, keras.optimizers.SGD(0.1))
    for batch in batches:
        step(*batch)
    strategy.join()
"""
)


@dataclass(frozen=True, slots=True)
class Reader:
    """before, after: lines around the block. inside: lines after its first one. dots: what stands
    for a line of `...`. changes: other words of the block, each once. given: to `dream run`."""

    before: str = TORCH
    inside: str = ""
    after: str = ""
    dots: str = ""
    changes: Mapping[str, str] = field(default_factory=dict)
    given: tuple[str, ...] = ("-n", "2")
    env: Mapping[str, str] = field(default_factory=dict)

    def script(self, code: str) -> str:
        """The block among what the reader has."""
        for old, new in self.changes.items():
            assert code.count(old) == 1, f"the block has not {old!r} once"
            code = code.replace(old, new)
        first, _, rest = code.partition("\n")
        lines = []
        for line in [first, *indent(self.inside, "    ").splitlines(), *rest.splitlines()]:
            if line.strip() == "..." and self.dots:
                lines.append(indent(self.dots, line[: line.index("...")]).rstrip())
            else:
                lines.append(line)
        code = "\n".join(lines)
        if code.rstrip().endswith(":"):
            code += "\n    ..."
        return f"{self.before}\n{code}\n{self.after}\n"


_BLOCK = '\nwith dream.strategy("mirrored") as strategy:\n    pass\n'
_KERAS_ON = {"KERAS_BACKEND": "tensorflow"}
_FOUR = ("-n", "4")
_COORDINATED = "parameter_server:engine=tensorflow,workers=2,servers=1"
READERS: Mapping[tuple[str, int], Reader] = {
    ("README", 0): Reader(
        KERAS, changes={"[...]": '[keras.layers.Dense(10, "softmax")]'}, env=_KERAS_ON
    ),
    ("README", 1): Reader(
        changes={"Net()": "nn.Linear(4, 10)", "F.cross_entropy(model(x), y)":
                 "F.cross_entropy(model(x), y.long().clamp(0, 9)[:, 0])"},
    ),
    ("README", 2): Reader(),
    ("asynchronous", 0): Reader(
        SERVED, inside=MADE_SERVED, changes={"[...]": "[keras.layers.Dense(10)]"}, given=_FOUR,
        env=_KERAS_ON,
    ),
    ("asynchronous", 1): Reader(
        SERVED, inside=MADE_SERVED, given=(*_FOUR, "--strategy", _COORDINATED), env=_KERAS_ON
    ),
    ("checkpoints", 0): Reader(
        inside=MADE + "schedule = torch.optim.lr_scheduler.StepLR(optimizer, 10)\n", dots=TRAINS,
        after='import pathlib; assert len(list(pathlib.Path("runs/a").iterdir())) > 0',
    ),
    ("checkpoints", 1): Reader(
        KERAS + COMPILED, env=_KERAS_ON,
        after='import pathlib; assert len(list(pathlib.Path("runs/a").iterdir())) > 0',
    ),
    ("collectives", 0): Reader(
        TORCH + _BLOCK + "x = x[:4]\n", given=("-n", "3"),
        after="if c.rank == 0:\n    handle.wait()\nif c.rank == 1:\n    c.receive(source=0)",
    ),
    ("concepts", 0): Reader(),
    ("data", 0): Reader(),
    ("data", 1): Reader(
        FILED, env=_KERAS_ON, changes={"...": "compiled()", "256": "8"}
    ),
    ("data", 2): Reader(),
    ("data", 3): Reader(
        TORCH + KERAS + COMPILED + "    batches = DataLoader(train, batch_size=8)\n"
        "    model.fit(x, y, batch_size=16, verbose=0)\n", env={"KERAS_BACKEND": "torch"},
    ),
    ("knowing", 0): Reader(
        TORCH + _BLOCK + "net, v1, v2, nt_xent = nn.Linear(4, 2), x[:8], x[8:16], F.mse_loss\n",
        after="assert len(z1) == len(z2) == 16; loss.backward()",
    ),
    ("knowing", 1): Reader(
        TORCH + "import os, pathlib\ndef download(name):\n    made = pathlib.Path(name)\n"
        "    assert made.exists() == (os.environ['RANK'] != '0')\n"
        "    made.mkdir(exist_ok=True)\n    return made\n",
    ),
    ("knowing", 2): Reader(TORCH + "model, optimizer, loader = made()\n"),
    ("planning", 0): Reader(
        'import json, pathlib\ntake = {"strategy": "sharded:zero=2", "devices": 2}\n'
        'plan = json.dumps({"take": take, "sentence": ""})\n'
        'pathlib.Path("plan.json").write_text(plan)\n' + TORCH
    ),
    ("start", 0): Reader(),
    ("starting", 0): Reader(
        TORCH + "def train():\n    return 1\n", after="assert list(results) == [1] * 4",
        changes={', nnodes=2, on="ray"': ""}, given=("-n", "1"),
    ),
    ("surviving", 0): Reader(
        TORCH + "EPOCHS = 2\n", dots=TRAINS, changes={"batches = ...": "batches = made()"},
        given=("-n", "2", "--checkpoint", "runs/a"),
    ),
    ("surviving", 1): Reader(
        TORCH + MADE + "EPOCHS, best, train_loader, test_loader = 2, 0.0, batches, batches\n"
        "def train(model, loader, optimizer):\n    for x, y in loader:\n"
        + indent(TRAINS, "        ") + "def test(model, loader):\n    return 1.0\n",
    ),
    ("surviving", 2): Reader(
        TORCH + '\nwith dream.strategy("mirrored") as strategy:\n' + indent(MADE, "    ")
        + "step = 1000\n",
    ),
    ("updates", 0): Reader(),
    ("updates", 1): Reader(inside=MADE, after="step(x[:8], y[:8])"),
    ("updates", 2): Reader(
        inside="parts = [nn.Sequential(nn.Linear(4, 4), nn.Tanh()) for _ in range(4)]\n"
        "model = nn.Sequential(*parts)\n"
        "optimizer = torch.optim.SGD(model.parameters(), lr=0.01)\n"
        "for x, y in DataLoader(train, batch_size=8):\n" + indent(TRAINS, "    "),
    ),
    ("updates", 3): Reader(inside=MADE, after="step(x[:8], y[:8])"),
}  # fmt: skip
"""By page, and the place of the block on it. Blocks that run as they stand need none."""
