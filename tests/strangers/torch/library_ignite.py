"""Training, validation and callbacks by `ignite`'s engines."""

import torch
from ignite.engine import Engine, Events, create_supervised_evaluator
from ignite.handlers import EarlyStopping
from ignite.metrics import Accuracy, Loss
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(3)
x, y = torch.randn(53, 6), torch.randint(0, 3, (53,))
train = DataLoader(TensorDataset(x[:43], y[:43]), batch_size=8, shuffle=True)
held = DataLoader(TensorDataset(x[43:], y[43:]), batch_size=4)
model = nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Dropout(0.2), nn.Linear(16, 3))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
plateau = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, patience=0, factor=0.5)
criterion = nn.CrossEntropyLoss()
history = []


def update(_, batch):
    model.train()
    inputs, labels = batch
    optimizer.zero_grad()
    loss = criterion(model(inputs), labels)
    loss.backward()
    optimizer.step()
    return loss.item()


trainer = Engine(update)
evaluator = create_supervised_evaluator(model, {"accuracy": Accuracy(), "loss": Loss(criterion)})
stop = EarlyStopping(patience=3, score_function=lambda e: -e.state.metrics["loss"], trainer=trainer)
evaluator.add_event_handler(Events.COMPLETED, stop)


@trainer.on(Events.ITERATION_COMPLETED)
def record(engine):
    history.append(engine.state.output)


@trainer.on(Events.EPOCH_COMPLETED)
def validate(_):
    evaluator.run(held)
    history.extend([evaluator.state.metrics["accuracy"], evaluator.state.metrics["loss"]])
    plateau.step(evaluator.state.metrics["loss"])


trainer.run(train, max_epochs=5)
models = {"trained": model}
