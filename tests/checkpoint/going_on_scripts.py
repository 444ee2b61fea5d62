"""Scripts of jobs that are disturbed, for `dream run`: WORD OUT SECONDS.

A step takes so many seconds, in torch until there is a file OUT.hurry. OUT gets what the training
ends with, OUT.step.RANK its step and its process; it is replaced as a whole, being read at any
time.
"""

SCRIPT = """
import json, os, sys, time
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
import dream

word, out, seconds = sys.argv[1], sys.argv[2], float(sys.argv[3])
torch.manual_seed(5)
x, y = torch.randn(61, 8), torch.randint(0, 3, (61,))
with dream.strategy(word) as strategy:
    model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Dropout(0.3), nn.Linear(16, 3))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    schedule = torch.optim.lr_scheduler.MultiStepLR(optimizer, [3, 5])
    batches = DataLoader(TensorDataset(x, y), batch_size=16, shuffle=True)
    noise = DataLoader(TensorDataset(torch.randn(61, 8)), batch_size=16, shuffle=True)
    both = {"labelled": batches, "noise": noise}
    at = strategy.load(model=model, optimizer=optimizer, scheduler=schedule, data=both)
    step = at.step if at else 0
    for epoch in range(at.epoch if at else 0, 8):
        for (added,), (inputs, target) in zip(noise, batches):
            inputs = inputs + 0.1 * added
            if "fault" in sys.argv and step == 13 and strategy.topology.rank == 1:
                raise ValueError("a bug")
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(inputs), target).backward()
            optimizer.step()
            step += 1
            known = f"{out}.step.{strategy.topology.rank}"
            with open(f"{known}.new", "w") as file:
                file.write(f"{step} {os.getpid()}")
            os.replace(f"{known}.new", known)
            if not os.path.exists(f"{out}.hurry"):
                time.sleep(seconds)
        schedule.step()
    state = strategy.full_state(model)
    if strategy.topology.rank == 0:
        with open(out, "w") as file:
            told = {"from": at and at.step, "steps": step}
            json.dump(told | {name: value.tolist() for name, value in state.items()}, file)
"""
KERAS = """
import json, os, sys, time
import keras, numpy as np
import dream

word, out, seconds = sys.argv[1], sys.argv[2], float(sys.argv[3])
keras.utils.set_random_seed(5)
x, y = np.random.randn(61, 8).astype("float32"), np.random.randint(0, 3, 61)

class Slow(keras.callbacks.Callback):
    def on_train_batch_end(self, batch, logs=None):
        known = f"{out}.step.{os.environ.get('RANK', '0')}"
        with open(f"{known}.new", "w") as file:
            file.write(f"{int(np.array(self.model.optimizer.iterations))} {os.getpid()}")
        os.replace(f"{known}.new", known)
        time.sleep(seconds)

with dream.strategy(word) as strategy:
    model = keras.Sequential([keras.Input((8,)), keras.layers.Dense(16, "relu"),
                              keras.layers.Dropout(0.3), keras.layers.Dense(3)])
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.Adam(0.01), loss)
    told = model.fit(x, y, batch_size=16, epochs=8, verbose=0, callbacks=[Slow()]).history
    state = {str(i): w.tolist() for i, w in enumerate(model.get_weights())}
    if strategy.topology.rank == 0:
        with open(out, "w") as file:
            json.dump({"steps": len(told["loss"]), "loss": told["loss"]} | state, file)
"""
