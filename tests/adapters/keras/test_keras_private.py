"""Keras's private names are where dream's module of them expects them, in Keras 3.15."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest
from launch_scripts import alone, keras_on

from dream.launch.forks.foresight import IMPORTS

NEUTRAL = """
import keras
from dream.adapters.keras.data import private as private_data
from dream.adapters.keras.checkpoint import private as private_checkpoint
from dream.adapters.keras import private
from dream.adapters.keras.update import private as private_graph
from dream.adapters.keras.checkpoint.private import automatic_name, numbers_of, slots_of
assert keras.__version__.startswith("3.15."), keras.__version__
model = keras.Sequential([keras.Input((3,)), keras.layers.Dropout(0.5), keras.layers.Dense(2)])
model.compile("sgd", "mse", metrics=[keras.metrics.MeanAbsoluteError()])
assert len(private.given_metrics(model)) == 1
private.build(model, private.symbolic((keras.ops.ones((4, 3)), keras.ops.ones((4, 2)))))
assert model.optimizer.built and [loss.reduction for loss in private.compiled_losses(model)]
assert private.loss_tracker(model).name == "loss" and private.first_epoch(model) is None
assert [type(layer).__name__ for layer in private.children(model)] == ["Dropout", "Dense"]
graph = private_graph.graph_of(model)
calls, given = private_graph.calls_in(graph), keras.ops.ones((4, 3))
assert [call.operation for call in calls] == model.layers
values = {id(graph.inputs[0]): given}
for call in calls:
    values.update(zip(map(id, call.outputs), private_graph.make_call(call, values, False)))
outputs = private_graph.packed(graph, [values[id(x)] for x in graph.outputs])
assert (keras.ops.convert_to_numpy(outputs) == keras.ops.convert_to_numpy(model(given))).all()
assert private.children(keras.layers.GRU(3))[0].name == "gru_cell"
assert len(private.layers_of(model)) >= 3 and private.output_losses(model) == []
assert [m.name for m in private_graph.metrics_of_step(model)][0] == "loss"
assert set(private_graph.narrower_types()) == {"int64", "uint64", "float64", "complex128"}
assert not private.makes_floats_of_results()
kernel, before = model.layers[1].kernel, keras.ops.convert_to_numpy(model.layers[1].kernel).copy()
with private.rehearsal(model) as scope, private_graph.assigning_trained(model, scope):
    kernel.assign(keras.ops.ones_like(kernel))
    assert (keras.ops.convert_to_numpy(kernel.value) == 1).all()
assert (keras.ops.convert_to_numpy(kernel.value) == before).all()
private_data.read_no_batch_to_build(model)
model._symbolic_build(iterator=None)  # reads nothing
assert sum(len(private.own_seeds(layer)) for layer in private.layers_of(model)) == 1
adapter = private_data.get_data_adapter(keras.ops.ones((5, 3)), None, None, 2, None, True, None)
assert isinstance(adapter, private_data.ArrayDataAdapter)
assert private_data.array_facts(adapter)[1:] == (5, 2, True)
assert not private_data.read_in_threads(adapter, False)
adapter = private_data.get_data_adapter(
    ((keras.ops.ones((2, 3)),) for _ in range(2)), None, None, None, None, False, None)
assert private_data.read_in_threads(adapter, True)
assert not private_data.read_in_threads(adapter, False)
read = type('Read', (keras.utils.PyDataset,), {'num_batches': 2})
workers = read(workers=2)
adapter = private_data.get_data_adapter(workers, None, None, None, None, False, None)
assert private_data.read_in_threads(adapter, False)
assert int(private.counter(model.optimizer)) == 0
assert len(private.known_to(model.optimizer)) == 2
assert private.decays(model.optimizer, model.layers[1].kernel)
assert automatic_name(keras.layers.LSTMCell(2)) == "lstm_cell"
adam = keras.optimizers.LossScaleOptimizer(keras.optimizers.Adam())
adam.build(model.trainable_variables)
slots = slots_of(adam.inner_optimizer)
assert {n: len(p) for n, p in slots.items()} == {"momentum": 2, "velocity": 2}
assert slots["momentum"][0][0] is model.layers[1].kernel
assert list(numbers_of(adam.inner_optimizer)) == ["iteration", "learning_rate"]
assert {"step_counter", "dynamic_scale"} < set(numbers_of(adam))
decay = keras.optimizers.schedules.ExponentialDecay(0.1, 5, 0.7)
assert private.schedule_of(keras.optimizers.SGD(decay)) is decay
assert set(private.results(model, {"own": 1})) == {"own"}
assert private.validates(model, 1, 2) and not private.validates(model, 0, 2)
adam = keras.optimizers.Adam()
assert callable(adam._clip_gradients) and adam.clipnorm is adam.global_clipnorm is adam.clipvalue
assert adam.clipvalue is None
assert private.shared_seed() is None and private.mask_of(keras.ops.ones(2)) is None
norm = keras.layers.BatchNormalization()
norm.build((4, 3))
assert private.reduction_axes(norm) == (0,) and len(private.all_states(norm)) == 2
asked = []
private.replace_moments(norm, lambda own, layer, x, mask: asked.append(layer) or own(x, mask))
norm(keras.ops.ones((4, 3)), training=True)
assert asked == [norm] and private.added_losses(norm) == 0
assert private.knows_training(norm) and not private.knows_training(keras.layers.Flatten())
chain = keras.Model(start := keras.Input((3,)), keras.layers.Dense(2)(start))
(call,) = private.calls_of(chain.layers[1], chain)
assert call.input_tensors[0] is start and call.output_tensors[0] is chain.outputs[0]
assert private.is_rehearsal([start])
with keras.StatelessScope(), private.casting()():
    assert private.is_rehearsal([])
assert not private.is_rehearsal([])
calls = []
private.before_first_call(norm, lambda: private.replace_call(
    norm, lambda call: lambda *a, **k: calls.append(1) or call(*a, **k)))
norm(keras.ops.ones((4, 3))), norm(keras.ops.ones((4, 3)))
assert len(calls) == 2
import json, pathlib, tempfile
backup = keras.callbacks.BackupAndRestore(tempfile.mkdtemp(), delete_checkpoint=False)
backup.set_model(model)
assert private_checkpoint.kept_with(backup) is None
private_checkpoint.backup_with(backup, lambda: {"at": 5, "batches": 2}, "at")
backup._save_model()
assert private_checkpoint.kept_with(backup) == {"at": 5, "batches": 2}
backup.on_train_begin()
assert private.first_epoch(model) == 5
private.backend_random.dropout = lambda x, *_, **__: x
assert float(keras.ops.min(model.layers[0](keras.ops.ones((50, 3)), training=True))) == 1
"""
TORCH = """
from dream.adapters.keras.tools.verify import traits
named = [traits(model).named(name) for name in model.state_dict()]
assert sorted(filter(None, named)) == sorted(v.path for v in model.weights), named
"""
TENSORFLOW = """
from dream.adapters.keras import hooks
from keras.src.losses import loss
before = loss.scale_loss_for_distribution
with hooks.unscaled_losses(), hooks.unscaled_losses():
    assert loss.scale_loss_for_distribution is not before
assert loss.scale_loss_for_distribution is before
from dream.adapters.tensorflow.keras import private as private_tensorflow
private_tensorflow.update_own_copy(model.optimizer)
private_tensorflow.skip_symbolic_build(model)
assert private_tensorflow.strategy_of(model) is None
model._distribute_strategy, model.predict_function = "strategy", "function"
with private_tensorflow.under_no_strategy(model):
    assert (private_tensorflow.strategy_of(model), model.predict_function) == (None, None)
assert (model._distribute_strategy, model.predict_function) == ("strategy", "function")
model._distribute_strategy = model.predict_function = None
assert private_tensorflow.strategy_of(model.optimizer) is not None
import numpy
import tensorflow as tf
places = tf.data.Dataset.range(9).shuffle(5).batch(2)
made = tf.data.Dataset.from_generator(range, args=(9,), output_signature=tf.TensorSpec((), "int64"))
for pure, source in (
    (True, places), (True, places.interleave(tf.data.Dataset.from_tensors).prefetch(2)),
    (False, made.batch(2)), (False, tf.data.Dataset.zip((places, made.repeat()))),
    (False, places.map(lambda x: tf.numpy_function(abs, [x], "int64"))),
):
    adapter = private_data.get_data_adapter(source, None, None, None, None, False, None)
    assert private_data.read_in_threads(adapter, True) != pure
as_it_stands = tf.data.Options()
as_it_stands.experimental_optimization.apply_default_optimizations = False
for ahead, source in (
    (False, places), (False, places.repeat().with_options(tf.data.Options())),
    (True, places.prefetch(1)), (True, places.map(abs, num_parallel_calls=2)),
    (True, places.prefetch(1).with_options(tf.data.Options())), (True, places.map(abs)),
    (False, places.map(abs, synchronous=True)), (False, places.map(tf.random.shuffle)),
    (True, places.with_options(as_it_stands)), (True, places.map(abs).with_options(as_it_stands)),
):
    adapter = private_data.get_data_adapter(source, None, None, None, None, False, None)
    assert private_data.gains_prefetch(adapter) != ahead
    assert not private_data.is_reordered(adapter)
for ends in ({}, {'on_epoch_end': lambda self: None}):
    read = type('Read', (keras.utils.PyDataset,), {
        '__len__': lambda self: 2, '__getitem__': lambda self, at: (numpy.ones((2, 3)),), **ends})
    adapter = private_data.get_data_adapter(read(), None, None, None, None, False, None)
    assert private_data.is_reordered(adapter) == bool(ends)
    assert not private_data.gains_prefetch(adapter)
    assert len(list(private_data.as_asked_for(adapter))) == 2
kernel = model.layers[1].kernel
known = kernel.value._unique_id
private_tensorflow.put_in_place(kernel, made := tf.Variable(tf.ones((3, 2))))
assert kernel.value is made and made._unique_id == known and kernel.numpy().sum() == 6
inputs = keras.Input((3,))
functional = keras.Model(inputs, {"a": keras.layers.Dense(2, name="made")(inputs)})
assert list(private.output_structure(functional)) == ["a"]
assert len(private.flat_inputs(functional, tf.ones((4, 3)))) == 1
assert len(private.flat_inputs(model, tf.ones((4, 3)))) == 1
assert private.made_by(functional.outputs[0]).name == "made"
twice = lambda own, value: tf.Variable(2 * value()) if own.trainable else None
with hooks.variables_kept_by(twice):
    kept = keras.Variable(lambda shape, dtype: tf.ones(shape, dtype), (3,), name="kept")
    beside = keras.Variable([1.0], trainable=False)
assert kept.numpy().tolist() == [2, 2, 2] and kept.shape == (3,) and beside.numpy().sum() == 1
assert keras.Variable([1.0]).numpy().sum() == 1
assert private.compiled_loss(model)(tf.ones((4, 2)), tf.zeros((4, 2))) == 1
"""


@pytest.mark.slow
@pytest.mark.parametrize("backend", ["torch", "tensorflow"])
def test_private_names(backend: str, tmp_path: Path) -> None:
    script = tmp_path / "names.py"
    script.write_text(NEUTRAL + (TENSORFLOW if backend == "tensorflow" else TORCH))
    environ = keras_on(backend)
    done = alone([str(script)], environ[IMPORTS], environ)
    assert done.returncode == 0, done.stderr


ADAPTERS = Path(__file__).parents[3] / "adapters"
FILES = [
    path
    for folder in ("keras", "pytorch/keras", "tensorflow/keras")
    for path in (ADAPTERS / folder).rglob("*.py")
    if not {"asynchronous", "tools"} & set(path.parts)
]


def _root(node: ast.expr) -> str:
    while isinstance(node, ast.Attribute):
        node = node.value
    return node.id if isinstance(node, ast.Name) else ""


def _breaches(text: str) -> set[str]:
    """Whose room a file's code belongs into: `private` where it imports what is private or reads
    it off another object, `hooks` where it assigns to Keras."""
    found, of_keras = set(), set()
    tree = ast.parse(text)
    for node in ast.walk(tree):
        modules = [a.name for a in node.names] if isinstance(node, ast.Import) else []
        if isinstance(node, ast.ImportFrom):
            modules = [node.module or ""]
        if any(module.startswith("keras.src") for module in modules):
            found.add("private")
        if isinstance(node, ast.Import | ast.ImportFrom) and modules[0].split(".")[0] == "keras":
            of_keras |= {alias.asname or alias.name for alias in node.names}
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute):
            name = node.attr
            if name[0] == "_" and not name.endswith("__") and _root(node) not in ("self", "ctx"):
                found.add("private")
            if isinstance(node.ctx, ast.Store) and _root(node) in of_keras:
                found.add("hooks")
        sets = isinstance(node, ast.Call) and _root(node.func) == "setattr"
        if sets and _root(node.args[0]) in of_keras:
            found.add("hooks")
    return found


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(ADAPTERS)))
def test_private_names_and_patches_stand_in_one_module_each(path: Path) -> None:
    assert _breaches(path.read_text()) <= {path.stem}


@pytest.mark.parametrize(
    ("text", "room"),
    [
        ("from keras.src import backend", "private"),
        ("import keras\nprint(keras.Model._made)", "private"),
        ("def f(model): return model._layers", "private"),
        ("import keras\nkeras.Model.fit = print", "hooks"),
        ("from keras import layers\nsetattr(layers.Layer, name, value)", "hooks"),
    ],
)
def test_a_breach_is_seen(text: str, room: str) -> None:
    assert _breaches(text) == {room}
