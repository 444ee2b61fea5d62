"""Small scripts, as users write them: some that every strategy trains alike, some that none does,
and some that cannot be verified."""

_TORCH = """
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset
import dream

draw = torch.Generator().manual_seed(3)
x, y = torch.randn(105, 8, generator=draw), torch.randint(0, 4, (105,), generator=draw)
layers = lambda *between: nn.Sequential(nn.Linear(8, 16), *between, nn.ReLU(), nn.Linear(16, 4))
"""
_KERAS = """
import keras, numpy as np
import dream

draw = np.random.default_rng(3)
x, y = draw.normal(size=(105, 8)).astype("float32"), draw.integers(0, 4, 105)
cross_entropy = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
"""


def _loop(
    layers: str,
    loss: str = "F.cross_entropy(model(a), b)",
    data: str = "x, y",
    options: str = "",
) -> str:
    """A loop over a shuffled loader, with an uneven last batch."""
    return f"""{_TORCH}
with dream.strategy("mirrored"{options}) as strategy:
    rank, ranks = strategy.topology.rank, strategy.topology.world_size
    model = {layers}
    optimizer = torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9)
    for _ in range(4):
        for a, b in DataLoader(TensorDataset({data}), batch_size=20, shuffle=True):
            optimizer.zero_grad()
            loss = {loss}
            loss.backward()
            optimizer.step()
"""


def _by_hand(batches: str) -> str:
    """A loop that cuts its batches itself."""
    return f"""{_TORCH}
with dream.strategy("mirrored") as strategy:
    rank, ranks = strategy.topology.rank, strategy.topology.world_size
    model = layers()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.02)
    for _ in range(3):
        {batches}
            optimizer.zero_grad()
            F.cross_entropy(model(x[part]), y[part]).backward()
            optimizer.step()
"""


_LOCAL = ", sync_batch_norm=False"
EQUAL = {
    "torch_loop": _loop("layers()"),
    "torch_scaler": f"""{_TORCH}
with dream.strategy("mirrored") as strategy:
    model, scaler = layers(), torch.amp.GradScaler("cpu")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9)
    for number in range(3):
        for a, b in DataLoader(TensorDataset(x, y), batch_size=20, shuffle=True):
            optimizer.zero_grad()
            loss = F.cross_entropy(model(a), b)
            with open(f"{{__file__}}.{{strategy.topology.world_size}}", "a") as file:
                print(loss.item() / 2, file=file)
            half = scaler.scale(loss) / 2 if number else scaler.scale(loss / 2)
            half.backward()
            scaler.step(optimizer)
            scaler.update()
""",
    "torch_frozen": _loop("layers(nn.BatchNorm1d(16))").replace(
        "    for _ in", "    model[0].requires_grad_(False)\n    for _ in"
    ),
    "torch_step": f"""{_TORCH}
model = layers()  # made before the block
with dream.strategy("mirrored") as strategy:
    loader = DataLoader(TensorDataset(x, y), batch_size=20, shuffle=True)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    model, optimizer, loader = strategy.prepare(model, optimizer, loader)
    step = strategy.train_step(model, F.cross_entropy, optimizer)
    for _ in range(5):
        for batch in loader:
            step(*batch)
""",
    "torch_step_seeded": f"""{_TORCH}
model = layers()  # made before the block
with dream.strategy("mirrored", seed=0) as strategy:
    loader = DataLoader(TensorDataset(x, y), batch_size=20, shuffle=True)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    model, optimizer, loader = strategy.prepare(model, optimizer, loader)
    step = strategy.train_step(model, F.cross_entropy, optimizer)
    for _ in range(5):
        for batch in loader:
            step(*batch)
""",
    "keras_fit": f"""{_KERAS}
with dream.strategy("mirrored"):
    model = keras.Sequential([keras.Input((8,)), keras.layers.Dense(16, "relu"),
                              keras.layers.Dense(4)])
    model.compile(keras.optimizers.SGD(0.1, momentum=0.9), cross_entropy)
model.fit(x, y, batch_size=20, epochs=4, verbose=0)  # after the block
""",
    "keras_step": f"""{_KERAS}
import tensorflow as tf
with dream.strategy("mirrored") as strategy:
    model = keras.Sequential([keras.Input((8,)), keras.layers.Dense(4)])
    optimizer = keras.optimizers.Adam(0.01)
    data = strategy.prepare(tf.data.Dataset.from_tensor_slices((x, y)).batch(20))
    step = strategy.train_step(model, cross_entropy, optimizer)
    for batch in [*data, *data]:
        step(*batch)
""",
    "keras_frozen": f"""{_KERAS}
with dream.strategy("mirrored"):
    model = keras.Sequential([keras.Input((8,)), keras.layers.Dense(16, trainable=False),
                              keras.layers.BatchNormalization(), keras.layers.Dense(4)])
    model.compile(keras.optimizers.SGD(0.1), cross_entropy)
    model.fit(x, y, batch_size=20, epochs=1, verbose=0)
""",
    "keras_executions": f"""{_KERAS}
with dream.strategy("mirrored"):
    model = keras.Sequential([keras.Input((8,)), keras.layers.Dense(4)])
    model.compile(keras.optimizers.SGD(0.1), cross_entropy, steps_per_execution=4)
    model.fit(x, y, batch_size=20, epochs=2, verbose=0)
""",
    "keras_scaler": f"""{_KERAS}
import tensorflow as tf
with dream.strategy("mirrored") as strategy:
    model = keras.Sequential([keras.Input((8,)), keras.layers.Dense(4)])
    optimizer = keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD(0.1))
    optimizer.build(model.trainable_variables)
    def step(a, b):
        with tf.GradientTape() as tape:
            loss = cross_entropy(b, model(a, training=True))
            scaled = optimizer.scale_loss(loss)
        optimizer.apply(tape.gradient(scaled, model.trainable_variables))
        return loss
    compiled = tf.function(step)
    for start in range(0, 100, 20):
        run = compiled if start else step
        loss = run(x[start:start + 20], y[start:start + 20])
        with open(f"{{__file__}}.{{strategy.topology.world_size}}", "a") as file:
            print(float(loss), file=file)
""",
    "keras_tape": f"""{_KERAS}
import tensorflow as tf
keras.utils.set_random_seed(1)
with dream.strategy("mirrored") as strategy:
    model = keras.Sequential([keras.Input((8,)), keras.layers.Dense(4)])
    optimizer = keras.optimizers.SGD(0.1, momentum=0.9)
    data = strategy.prepare(tf.data.Dataset.from_tensor_slices((x, y)).batch(20))

    @tf.function
    def step(a, b):
        with tf.GradientTape() as tape:
            loss = strategy.weigh(cross_entropy(b, model(a, training=True)), tf.shape(b)[0])
        gradients = tape.gradient(loss, model.trainable_variables)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables))

    for batch in [*data, *data, *data]:
        step(*batch)
""",
    "attention": f"""{_TORCH}
class Attending(nn.Module):
    def __init__(self):
        super().__init__()
        self.attention = nn.MultiheadAttention(8, 2, batch_first=True)
        self.head = nn.Linear(8, 4)
    def forward(self, x):
        x = x.reshape(-1, 1, 8) * torch.linspace(0.5, 2, 5).reshape(1, 5, 1)
        return self.head(self.attention(x, x, x, need_weights=False)[0].mean(1))

with dream.strategy("mirrored"):
    model = Attending()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    for _ in range(4):
        for a, b in DataLoader(TensorDataset(x, y), batch_size=20, shuffle=True):
            optimizer.zero_grad()
            F.cross_entropy(model(a), b).backward()
            optimizer.step()
""",
}

EQUAL["keras_rivals"] = f"""{_KERAS}
import tensorflow as tf

class Rivals(keras.Model):  # each with an optimizer of its own, and no call()
    def __init__(self):
        super().__init__()
        self.maker = keras.Sequential([keras.Input((4,)), keras.layers.Dense(8)])
        self.critic = keras.Sequential([keras.Input((8,)), keras.layers.Dense(1)])
        self.first, self.second = keras.optimizers.Adam(0.01), keras.optimizers.Adam(0.01)
    def lost(self, found, wanted):
        return tf.reduce_mean(keras.losses.binary_crossentropy(
            wanted * tf.ones_like(found), found, from_logits=True))
    def train_step(self, data):
        real, noise = data
        with tf.GradientTape() as tape:
            told = self.lost(self.critic(real), 1.0)
            told += self.lost(self.critic(self.maker(noise)), 0.0)
        own = self.critic.trainable_variables
        self.first.apply_gradients(zip(tape.gradient(told, own), own))
        with tf.GradientTape() as tape:
            fooled = self.lost(self.critic(self.maker(noise)), 1.0)
        own = self.maker.trainable_variables
        self.second.apply_gradients(zip(tape.gradient(fooled, own), own))
        return {{"told": told, "fooled": fooled}}

with dream.strategy("mirrored"):
    keras.utils.set_random_seed(1)
    model = Rivals()
    model.compile()
    model.fit(x, draw.normal(size=(105, 4)).astype("float32"), batch_size=20, epochs=3, verbose=0)
"""
EQUAL["bias_before_norm"] = _loop("layers(nn.BatchNorm1d(16))").replace(
    "SGD(model.parameters(), lr=0.02, momentum=0.9)", "Adam(model.parameters(), lr=0.01)"
)
EQUAL["keras_bias_before_norm"] = f"""{_KERAS}
with dream.strategy("mirrored"):
    keras.utils.set_random_seed(1)
    model = keras.Sequential([keras.Input((8,)), keras.layers.Dense(16, name="before"),
                              keras.layers.BatchNormalization(), keras.layers.ReLU(),
                              keras.layers.Dense(4)])
    model.compile(keras.optimizers.Adam(0.01), cross_entropy)
    model.fit(x, y, batch_size=20, epochs=4, verbose=0)
"""
EQUAL["bias_before_norm_and_dropout"] = EQUAL["bias_before_norm"].replace(
    "nn.BatchNorm1d(16)", "nn.Sequential(nn.BatchNorm1d(16), nn.Dropout(0.2))"
)
EQUAL["keras_bias_before_norm_and_dropout"] = EQUAL["keras_bias_before_norm"].replace(
    "keras.layers.ReLU()", "keras.layers.Dropout(0.2), keras.layers.ReLU()"
)
EQUAL["autocast_inside"] = EQUAL["attention"].replace(
    "        return self.head(self.attention(x, x, x, need_weights=False)[0].mean(1))",
    """        with torch.autocast("cpu", torch.bfloat16):
            return self.head(self.attention(x, x, x, need_weights=False)[0].mean(1)).float()""",
)

WRONG = {
    "in_batch": _loop(
        "layers()", loss="F.cross_entropy(model(a) @ model(a).T, torch.arange(len(a)))"
    ),
    "sum": _loop("layers()", loss="F.cross_entropy(model(a), b, reduction='sum') / 100"),
    "dropout": _loop("layers(nn.Dropout(0.5))"),
    "batch_norm": _loop("layers(nn.BatchNorm1d(16))", options=_LOCAL),
    "both": _loop("layers(nn.BatchNorm1d(16), nn.Dropout(0.5))", options=_LOCAL),
    "three_causes": _loop(
        "layers(nn.Dropout(0.5))",
        loss="F.cross_entropy(model(a), b, reduction='sum') / 100",
        data="torch.randn(105, 8), y",
    ),
    "dealt_twice": _loop("layers()", data="x[rank::ranks], y[rank::ranks]"),
    "shuffling": _by_hand("for part in torch.randperm(105).split(20):"),
    "no_seed": _by_hand(
        "import numpy as np\n"
        "        for part in torch.tensor(np.random.default_rng().permutation(105)).split(20):"
    ),
    "uneven": _by_hand("for part in [p[rank::ranks] for p in torch.arange(105).split(20)]:"),
    "keras_dropout": f"""{_KERAS}
with dream.strategy("mirrored"):
    model = keras.Sequential([keras.Input((8,)), keras.layers.Dense(16, "relu"),
                              keras.layers.Dropout(0.5), keras.layers.GaussianNoise(0.1),
                              keras.layers.Dense(4)])
    model.compile(keras.optimizers.SGD(0.1), cross_entropy)
    model.fit(x, y, batch_size=20, epochs=1, verbose=0)
""",
}

_TAPE = f"""{_KERAS}
import tensorflow as tf
with dream.strategy("mirrored") as strategy:
    model = keras.Sequential([keras.Input((8,)), keras.layers.Dense(4)])
    optimizer = keras.optimizers.SGD(0.1)
    x, y = strategy.share(tf.constant(x), tf.constant(y))
    with tf.GradientTape() as tape:
        loss = cross_entropy(y, model(x, training=True))
    optimizer.apply_gradients(
        zip(tape.gradient(loss, model.trainable_variables), model.trainable_variables))
"""

BAD = {
    "compiled": EQUAL["keras_tape"].replace("@tf.function", "@tf.function(jit_compile=True)"),
    "read_in_a_function": EQUAL["keras_tape"].replace(
        "    for batch in [*data, *data, *data]:\n        step(*batch)",
        """    @tf.function
    def epoch():
        for a, b in data:
            step(a, b)
    epoch()""",
    ),
    "tape_unseeded": EQUAL["keras_tape"].replace("keras.utils.set_random_seed(1)\n", ""),
    "tape_unweighed": _TAPE,
    "bad_option": "import torch, dream\nwith dream.strategy('mirrored', precison='float16'): ...\n",
    "no_block": "print('nothing here')",
    "crashes": f"{_TORCH}\nwith dream.strategy('mirrored'):\n    raise ValueError('mine')\n",
    "no_loss": f"{_TORCH}\nwith dream.strategy('mirrored'):\n    layers()(x)\n",
}

ALL = {**EQUAL, **WRONG, **BAD}
