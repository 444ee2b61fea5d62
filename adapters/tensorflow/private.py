"""Names of TensorFlow that it does not document, all that dream needs. Read off TensorFlow 2.21,
and held by tests/adapters/tensorflow/test_tf_private.py."""

from __future__ import annotations

import ctypes
import mmap
import re
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from functools import cache
from pathlib import Path
from typing import Any

import keras
import tensorflow as tf
from tensorflow.core.protobuf.config_pb2 import ConfigProto
from tensorflow.core.protobuf.rewriter_config_pb2 import RewriterConfig
from tensorflow.experimental import dtensor
from tensorflow.python.data.experimental.ops import distribute
from tensorflow.python.distribute.sharded_variable import ShardedVariable
from tensorflow.python.distribute.values import DistributedVariable
from tensorflow.python.eager import context, record
from tensorflow.python.ops import stateful_random_ops
from tensorflow.python.ops.control_flow_v2_func_graphs import CondBranchFuncGraph

from dream.cluster.settings import inherited
from dream.stall.phases import Phase, PhaseRule

LIBRARY = "libtensorflow_cc.so"
"""The file whose sockets TensorFlow's server is on."""
ResourceVariable = dtensor.DVariable.__base__
"""The class of an ordinary variable."""


def waiting_files() -> list[str]:
    """Where the stack of a thread stands that waits inside a tf.function."""
    eager = Path(tf.__file__).parent / "python" / "eager"
    return [str(eager / name) for name in ("execute.py", "context.py")]


def calling_files() -> list[str]:
    """Return where TensorFlow calls functions of Python from its own threads: those of
    `numpy_function` and `py_function`, and generators that it reads."""
    return [str(Path(tf.__file__).parent / "python" / "ops" / "script_ops.py")]


def phases() -> list[PhaseRule]:
    """Say what part of training a Python stack in TensorFlow's files is in. A function of
    TensorFlow's does forward, backward and update in one call: no stack tells them apart."""
    python = Path(tf.__file__).parent / "python"
    functions = python / "eager" / "polymorphic_function"
    return [
        PhaseRule(str(python / "data" / "ops" / "iterator_ops.py"), Phase.INPUT),
        PhaseRule(str(python / "data" / "ops" / "from_generator_op.py"), Phase.INPUT),
        PhaseRule(
            str(functions / "tracing_compilation.py"),
            Phase.COMPILING,
            ("_create_concrete_function",),
        ),
        PhaseRule(str(functions / "polymorphic_function.py"), Phase.STEP, ("__call__",)),
        PhaseRule(str(python / "eager" / "backprop.py"), Phase.BACKWARD, ("gradient", "jacobian")),
    ]


_LOGS_FROM = re.compile(rb"_ZN4absl\d+lts_\d+14SetMinLogLevelENS0_18LogSeverityAtLeastE")
"""Abseil's SetMinLogLevel, whose symbol has the day of its release in it."""


def log_no_information() -> bool:
    """Have TensorFlow's C++ log warnings and errors alone from here on, as TF_CPP_MIN_LOG_LEVEL=1
    has, which is read at import and stands where a user sets it; DTensor logs each function that
    it compiles. Return whether that could be done."""
    if "TF_CPP_MIN_LOG_LEVEL" in inherited():
        return True
    library = Path(tf.sysconfig.get_lib()) / "libtensorflow_framework.so.2"
    if not library.exists():
        return False
    with library.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as text:
        found = _LOGS_FROM.search(text)
        symbol = found.group().decode() if found else ""
    log_from = getattr(ctypes.CDLL(str(library)), symbol, None) if symbol else None
    if log_from is not None:
        log_from(1)
    return log_from is not None


def read_copy(source: Any) -> Any:
    """Return of a variable of several replicas, TensorFlow's or Keras's, the copy that is read
    outside of a replica; anything else as it is."""
    held = getattr(source, "value", source) if isinstance(source, keras.Variable) else source
    return held._primary if isinstance(held, DistributedVariable) else source


def read_as_number(variable: Any) -> None:
    """Have a variable of several replicas, of shape (), be read by int() and float(), as one on one
    device is."""
    kind: Any = type(variable)
    if not hasattr(kind, "__int__"):
        variable.__class__ = _number(kind)


@cache
def _number(kind: Any) -> Any:
    return type(
        kind.__name__,
        (kind,),
        {
            "__int__": lambda self: int(self.numpy()),
            "__float__": lambda self: float(self.numpy()),
            "__index__": lambda self: int(self.numpy()),
        },
    )


def global_seed() -> int | None:
    """What tf.random.set_seed was given; None where it was not called."""
    found: int | None = context.global_seed()
    return found


def eager_draws() -> list[Any]:
    """Return where tf.random goes on outside of graphs, as plain values: what operations draw their
    seeds from, and the state of the global generator, each None where there is none."""
    own = getattr(context.context(), "_rng", None)
    shared = stateful_random_ops.global_generator
    return [
        None if own is None else list(own.getstate()),
        None if shared is None else shared.state.numpy(),
    ]


def go_on_drawing(states: Sequence[Any]) -> None:
    """Have tf.random go on from what `eager_draws` gave."""
    of_seeds, of_shared = states
    if of_seeds is not None:
        version, words, gauss = of_seeds
        context.context()._rng.setstate((version, tuple(words), gauss))
    if of_shared is None:
        stateful_random_ops.global_generator = None
    else:
        tf.random.get_global_generator().state.assign(of_shared)


def recording() -> bool:
    """Whether a tape that is open may record what is computed."""
    return bool(record.could_possibly_record())


def unrecorded() -> AbstractContextManager[None]:
    """Inside, no tape that is open records what is computed."""
    stopped: AbstractContextManager[None] = record.stop_recording()
    return stopped


@contextmanager
def without_memory_pass() -> Iterator[None]:
    """Graphs that are called inside are optimized without the pass that saves memory. It estimates
    what each operation costs by the shapes that it infers; in DTensor's graphs these do not fit
    each other, and it prints "Incompatible Matrix dimensions" as errors, though the products are
    right."""
    live = context.context()
    before = live.function_call_options
    live.function_call_options = _without_memory_pass(
        before.executor_type, before.config_proto_serialized
    )
    try:
        yield
    finally:
        live.function_call_options = before


@cache
def _without_memory_pass(executor: str | None, config: bytes) -> Any:
    made = ConfigProto.FromString(config)
    made.graph_options.rewrite_options.memory_optimization = RewriterConfig.NO_MEM_OPT
    return context.FunctionCallOptions(executor, made)


def cut_over_servers(variable: Any) -> list[Any] | None:
    """Return the shards of a variable that ParameterServerStrategy cut; None of any other."""
    return list(variable.variables) if isinstance(variable, ShardedVariable) else None


@contextmanager
def scheduling(strategy: tf.distribute.ParameterServerStrategy) -> Iterator[None]:
    """Inside, a function is traced as when it is scheduled: TensorFlow would warn that its own
    coordinator does not run it."""
    extended = strategy.extended
    extended._being_scheduled = True
    try:
        yield
    finally:
        extended._being_scheduled = False


STATEFUL_DRAWS = frozenset(
    {
        "Multinomial", "ParameterizedTruncatedNormal", "RandomGamma", "RandomPoissonV2",
        "RandomShuffle", "RandomStandardNormal", "RandomUniform", "RandomUniformInt",
        "StatefulRandomBinomial", "TruncatedNormal",
    }
)  # fmt: skip
"""The operations behind tf.random that draw from a state of the graph's own."""


def stacked() -> list[list[tf.Tensor]]:
    """Return what tensors of a length that is not known were put together from, one piece behind
    the other, in the graph that is being traced."""
    if tf.executing_eagerly():
        return []
    found = []
    for op in tf.compat.v1.get_default_graph().get_operations():
        if _stacks(op):
            dims = op.outputs[0].shape
            if dims.rank and dims[0] is None:
                found.append(_pieces(op))
    return found


def _stacks(op: tf.Operation) -> bool:
    return op.type == "ConcatV2" and bool(tf.get_static_value(op.inputs[-1]) == 0)


def _pieces(op: tf.Operation) -> list[tf.Tensor]:
    each = ([*_pieces(x.op)] if _stacks(x.op) else [x] for x in op.inputs[:-1])
    return [piece for pieces in each for piece in pieces]


def stateful_draws() -> list[str]:
    """Name those of the graph that is being traced."""
    if tf.executing_eagerly():
        return []
    graph = tf.compat.v1.get_default_graph()
    return sorted({op.type for op in graph.get_operations()} & STATEFUL_DRAWS)


def assigned(variables: Sequence[Any]) -> list[Any]:
    """Return those of the variables that the graph that is being traced assigns to."""
    graph = tf.compat.v1.get_default_graph()
    names = {inner.name: id(outer) for outer, inner in getattr(graph, "captures", ())}
    targets = {
        names.get(op.inputs[0].name)
        for op in graph.get_operations()
        if op.type.startswith("Assign") and op.inputs
    }
    return [v for v in variables if id(v.handle) in targets]


def parts_of(dataset: tf.data.Dataset) -> list[tuple[str, list[str] | None]]:
    """Return what a dataset is made of, by kind, from its end; and the texts that a list of file
    names holds."""
    kind = type(dataset).__name__
    files = getattr(dataset, "_filenames", None)
    texts = None
    if kind == "_TensorSliceDataset":
        held = dataset._tensors
        if len(held) == 1 and held[0].dtype == tf.string:
            texts = [name.decode(errors="replace") for name in held[0].numpy().ravel()]
    kind = "Map" if kind == "_RestructuredDataset" else kind
    kind = kind if kind.endswith("V2") else kind.removeprefix("_").removesuffix("Dataset")
    before = dataset._inputs() or ([] if files is None else [files])
    return [(kind, texts), *(part for each in before for part in parts_of(each))]


_STAGES = "Map", "Prefetch", "_Options", "Cache", "Repeat", "Shuffle", "Take", "Skip"
_KEEPS_BATCHES = tuple(f"{name}Dataset" for name in _STAGES)


def batch_of(dataset: tf.data.Dataset) -> int | None:
    """Return the samples of a dataset's batches, where one of its last stages makes them: those
    behind it keep batches as they are."""
    size = getattr(dataset, "_batch_size", None)
    if size is not None:
        return int(tf.get_static_value(size))
    before = dataset._inputs()
    kept = type(dataset).__name__.endswith(_KEEPS_BATCHES)
    return batch_of(before[0]) if kept and len(before) == 1 else None


def files_of_rank(dataset: tf.data.Dataset, ranks: int, rank: int) -> tf.data.Dataset:
    """Return the dataset that reads every so many file alone."""
    options = tf.data.Options()
    policy = tf.data.experimental.AutoShardPolicy.FILE
    options.experimental_distribute.auto_shard_policy = policy
    return distribute._AutoShardDataset(dataset.with_options(options), ranks, rank)


def is_branch(graph: Any) -> bool:
    """Whether this is the graph of a branch of tf.cond."""
    return isinstance(graph, CondBranchFuncGraph)


def draws_in(graph: Any) -> list[str]:
    """Name the operations of a graph that draw random numbers."""
    types = {op.type for op in graph.get_operations()}
    return sorted(t for t in types if t in STATEFUL_DRAWS or t.startswith("StatelessRandom"))
