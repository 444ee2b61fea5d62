"""The options of `dream.strategy`: name, type, default and meaning of each."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Literal

from dream._errors import ConfigurationError, Unsupported
from dream.update.outer import MOMENTUM as OUTER_MOMENTUM
from dream.update.precision import PRECISIONS

Framework = Literal["torch", "tensorflow"]
FRAMEWORKS: tuple[Framework, ...] = ("torch", "tensorflow")


@dataclass(frozen=True, slots=True)
class Option:
    """One keyword of `dream.strategy`.

    kind: the type a value must have; minimum: the least value, for numbers.
    choices: the only values there are; empty for any.
    also: types that a script may give instead, and the command line cannot write.
    words: texts that stand for a value of another kind.
    mesh: whether `--strategy` on the command line replaces the script's value.
    frameworks: where it has a meaning; elsewhere it raises `Unsupported`.
    """

    name: str
    kind: type[bool] | type[int] | type[float] | type[str]
    default: object
    help: str
    minimum: float | None = None
    choices: tuple[object, ...] = ()
    also: tuple[type, ...] = ()
    words: tuple[str, ...] = ()
    mesh: bool = False
    frameworks: tuple[Framework, ...] = FRAMEWORKS

    def check_framework(self, value: object, framework: Framework) -> None:
        """Refuse what has no meaning in the framework. value: checked."""
        if framework not in self.frameworks:
            raise Unsupported(
                f"Option {self.name!r} has no meaning in this framework. Received: "
                f"{self.name}={value!r} for {framework}. It works in: "
                f"{', '.join(self.frameworks)}. Remove it."
            )

    def check(self, value: object) -> object:
        """The value in the option's own type."""
        if value is None and self.default is None:
            return None
        if (self.also and isinstance(value, self.also)) or value in self.words:
            return value
        if self.kind is float and type(value) is int:
            value = float(value)
        if type(value) is not self.kind:
            kinds = " or ".join([self.kind.__name__, *map(repr, self.words)])
            raise ConfigurationError(
                f"Option {self.name!r} has the wrong type. Received: {value!r} "
                f"({type(value).__name__}). Give {kinds}: {self.help}"
            )
        least = self.minimum
        if least is not None and isinstance(value, (int, float)) and not value >= least:  # nan too
            raise ConfigurationError(
                f"Option {self.name!r} is too small. Received: {value!r}. "
                f"Give at least {least:g}: {self.help}"
            )
        if self.choices and value not in self.choices:
            raise ConfigurationError(
                f"Option {self.name!r} has no such value. Received: {value!r}. "
                f"Give one of {', '.join(map(repr, self.choices))}: {self.help}"
            )
        return value

    def parse(self, text: str) -> object:
        """The value written in `NAME:option=text`."""
        words: dict[str, object] = {"true": True, "false": False, "none": None}
        if bool in (self.kind, *self.also) and text.lower() in words:
            return self.check(words[text.lower()])
        if self.kind is bool or text.lower() == "none":
            return self.check(words.get(text.lower(), text))
        try:
            value: object = self.kind(text)
        except ValueError:
            value = text
        return self.check(value)


COMMON: Mapping[str, Option] = MappingProxyType(
    {
        "reduction": Option("reduction", str, "auto", "who adds the gradients up", mesh=True),
        "devices": Option("devices", int, None, "devices per process", minimum=1, mesh=True),
    }
)
"""What every strategy takes beside its own options, and `--strategy` may set."""

SEED = Option(
    "seed", int, None, "fixes the order of shuffled data from outside; None leaves the script's",
    minimum=0,
)  # fmt: skip
RANDOMNESS = Option(
    "randomness", str, "global", "whose random numbers a model's call draws: those of the global "
    "batch, of which a rank uses its rows, or each rank's own, which is quick and another training",
    choices=("global", "local"),
)  # fmt: skip

_ACCUMULATE = Option(
    "accumulate", int, 1, "micro-batches that each global batch is computed in, one after the "
    "other: the numbers stay, less memory is needed; 'auto' makes twice as many of them whenever "
    "memory runs out, in train_step on torch, and in fit of Keras models there",
    minimum=1, words=("auto",),
)  # fmt: skip
_CLIP_NORM = Option(
    "clip_norm", float, None, "largest 2-norm of the whole model's global gradient", minimum=0.0
)
_CLIP_VALUE = Option(
    "clip_value", float, None, "largest absolute value of an element of the global gradient",
    minimum=0.0,
)  # fmt: skip
_PRECISION = Option(
    "precision", str, "float32", "what models compute in while they train: a type, whose weights, "
    "gradients and optimizer stay float32, or a level O0 to O3 of the mixed-precision literature; "
    "float16, O1 and O2 scale the loss",
    choices=tuple(PRECISIONS),
)  # fmt: skip
_RECOMPUTE = Option(
    "recompute", str, False, "which layers' values are computed again in backward instead of kept: "
    "True for each layer of the model, 'sqrt' for the square root of their number in runs, 'auto' "
    "for those that memory asks for, or a list of layer names",
    choices=("sqrt", "auto"), also=(bool, list, tuple),
)  # fmt: skip
_MEMORY_BUDGET = Option(
    "memory_budget", float, None, "what a step's activations may take under recompute='auto': "
    "bytes, a size as '2GB', up to 1 the share of what they take; by default what is free on a GPU",
    minimum=0.0, also=(str,),
)  # fmt: skip
_SYNC_BATCH_NORM = Option(
    "sync_batch_norm", bool, None, "BatchNorm normalises by the statistics of the global batch, as "
    "one device does, on the CPU too; by default where that is exact, so not under accumulate=",
)  # fmt: skip
_STRICT = Option(
    "strict",
    bool,
    False,
    "raise where it cannot be told what a loss is a mean over; by default it "
    "counts as a mean over samples, and a line says so",
)
INPUT = Option(
    "input", str, "whole", "how a stream is read: 'whole' by every rank, in the order of one "
    "device, or 'sharded': each rank reads its own parts of it alone, in an order of their own",
    choices=("whole", "sharded"), mesh=True,
)  # fmt: skip
UPDATE = (
    _ACCUMULATE, _CLIP_NORM, _CLIP_VALUE, _PRECISION, _RECOMPUTE, _MEMORY_BUDGET,
    _SYNC_BATCH_NORM, _STRICT,
)  # fmt: skip
"""How an update is made: the same meaning under every synchronous strategy. What an adapter cannot
honour, it refuses by name when the strategy is made (`update.UpdateOptions.only`)."""

TRAVEL = (
    Option(
        "compression", str, None, "how gradients are made smaller on their way, with a loss: "
        "'float16', 'bfloat16', 'topk[:FRACTION]' or, in torch, 'powersgd[:RANK]', with error "
        "feedback",
    ),
    Option(
        "op", str, "mean", "how the replicas' gradients become one: their mean, or Adasum, which "
        "adds what is orthogonal and averages what is parallel",
        choices=("mean", "adasum"),
    ),
    Option(
        "autotune", bool, False, "the ring tries sizes and cycle times while training, and says "
        "which it chose", mesh=True,
    ),
)  # fmt: skip
"""How gradients travel."""

REPLICAS = (
    *UPDATE,
    *TRAVEL,
    INPUT,
    Option(
        "shares", str, "equal", "how each global batch is divided among the replicas: 'equal', "
        "'auto' by their measured speeds, or a list of whole numbers in that proportion, as [3, 1]",
        choices=("equal", "auto"), also=(list, tuple),
    ),
    Option(
        "one_copy", bool, False, "the replicas of one host hold parameters and optimizer state "
        "once, in memory that they share, and each updates a part of them; in train_step, with an "
        "element-wise optimizer, on the CPU", mesh=True, frameworks=("torch",),
    ),
    Option(
        "cross_device_ops", str, "auto", "what adds up the gradients of one process's devices: "
        "'nccl', 'hierarchical_copy', or 'one_device', which copies them to the first; 'auto' "
        "leaves it to TensorFlow", choices=("auto", "nccl", "hierarchical_copy", "one_device"),
        mesh=True, frameworks=("tensorflow",),
    ),
    Option(
        "bucket_mb", float, None, "size in MB of the buckets that gradients are reduced in",
        minimum=0.001, mesh=True, frameworks=("torch",),
    ),
    Option(
        "bucket_view", bool, True, "gradients lie in the buckets that are reduced: no second copy",
        mesh=True, frameworks=("torch",),
    ),
    Option(
        "static_graph", bool, False, "every step runs the same graph: DDP finds out once which "
        "parameters take part, and layers may be used again in backward",
        mesh=True, frameworks=("torch",),
    ),
    Option(
        "find_unused", bool, False, "as DDP's; parameters that take no part in a step's loss are "
        "found after backward, with it or without",
        mesh=True, frameworks=("torch",),
    ),
    Option(
        "resync", int, None, "steps between broadcasts of rank 0's weights in a job of two "
        "frameworks, whose arithmetic differs in the last bit: 100, or 1 where their optimizers "
        "differ by more; 0 for never. Ranks of one framework are alike to the bit and need none",
        minimum=0, mesh=True,
    ),
)  # fmt: skip

_DATA = Option(
    "data", int, None, "replicas along the data axis; what the model axis leaves by default",
    minimum=1, mesh=True,
)  # fmt: skip
_MODEL = Option(
    "model", int, None, "parts along the model axis; what the data axis leaves by default",
    minimum=1, mesh=True,
)  # fmt: skip
_STAGES = Option(
    "stages", int, None, "pipeline: how many, balanced; or the names of the layers that the later "
    "stages begin with. One for each part of the model axis by default",
    minimum=1, also=(list, tuple), mesh=True,
)  # fmt: skip
_PIPELINE = (
    _STAGES,
    Option(
        "schedule", str, "1f1b", "pipeline: the order in which microbatches run",
        choices=("gpipe", "1f1b", "interleaved"), mesh=True,
    ),
    Option(
        "microbatches", int, None, "pipeline: parts that a batch is cut into; twice the stages by "
        "default, fewer where the batch is small, 1 on CPU devices of one process", minimum=1,
        mesh=True,
    ),
    Option(
        "balance", str, "parameters", "pipeline: what stages=N evens out",
        choices=("parameters", "time"), mesh=True,
    ),
)  # fmt: skip
_PLAN = Option(
    "plan", str, "auto", "tensor: a dict from patterns of layer names to 'column', 'row' or "
    "'replicate'; 'auto' finds MLP and attention blocks by itself",
    choices=("auto",), also=(dict,),
)  # fmt: skip
MODEL = (
    Option(
        "split", str, "pipeline", "how the model is split",
        choices=("pipeline", "tensor", "layers"), mesh=True,
    ),
    _DATA,
    _MODEL,
    *_PIPELINE,
    _PLAN,
    Option(
        "place", str, None, "layers: a dict from layer names to device indices, below model=; "
        "None deals the layers out in order", also=(dict,),
    ),
    *UPDATE,
)  # fmt: skip
HYBRID = (
    Option(
        "split", str, "pipeline", "how the model is split along the model axis",
        choices=("pipeline", "tensor"), mesh=True,
    ),
    _DATA,
    _MODEL,
    *_PIPELINE,
    _PLAN,
    *UPDATE,
)  # fmt: skip
SHARDED = (
    Option(
        "zero", int, 3, "what is sharded: 1 optimizer state, 2 gradients too, 3 parameters too",
        choices=(1, 2, 3), mesh=True,
    ),
    Option(
        "cpu_offload", bool, False, "zero=2 and 3: parameters, gradients and optimizer state lie "
        "on the host, and optimizers step there; a GPU has the parts that it computes with",
        mesh=True, frameworks=("torch",),
    ),
    Option(
        "prefetch", int, None, "zero=2 and 3: parts of the model that are gathered ahead of the "
        "one that computes, in forward and in backward; by default FSDP2 chooses",
        minimum=0, mesh=True, frameworks=("torch",),
    ),
    Option(
        "find_unused", bool, False, "zero=1: as DDP's; parameters that take no part in a step's "
        "loss are found after backward, with it or without",
        mesh=True, frameworks=("torch",),
    ),
    Option(
        "data", int, None, "groups of ranks that hold all shards each (hybrid sharding); 1 by "
        "default", minimum=1, mesh=True,
    ),
    INPUT,
    *UPDATE,
)  # fmt: skip
SERVERS = (
    Option(
        "engine", str, "dream", "whose servers: dream's, which `fit` and both frameworks have, or "
        "TensorFlow's own, where rank 0 is the chief that runs the script and hands out steps",
        choices=("dream", "tensorflow"), mesh=True, frameworks=("tensorflow",),
    ),
    Option(
        "workers", int, None, "ranks that compute gradients, the first ones, or those after a "
        "chief; what the servers leave by default", minimum=1, mesh=True,
    ),
    Option(
        "servers", int, 1, "ranks that own the parameters, the last ones", minimum=1, mesh=True
    ),
    Option(
        "staleness", int, None, "batches by which the fastest worker may lead the slowest; 0 makes "
        "one update of each batch, shared by all; None for any lead", minimum=0, mesh=True,
    ),
    Option(
        "snapshot_every", int, None, "updates between snapshots of the servers, from which `dream "
        "run --max-restarts` goes on; None for no snapshots", minimum=1, mesh=True,
    ),
    Option(
        "partitioner", str, None, "engine='tensorflow': how kernels and embeddings are cut over "
        "the servers, along their first dim: 'min_size:BYTES' or 'max_size:BYTES' a shard, or "
        "'fixed:SHARDS'; None for whole", mesh=True, frameworks=("tensorflow",),
    ),
)  # fmt: skip
LOCAL = (
    Option(
        "every",
        int,
        8,
        "steps between two averages of the replicas; 1 is what `mirrored` does",
        minimum=1,
        mesh=True,
    ),
    Option(
        "outer_lr",
        float,
        None,
        "DiLoCo: the rate of an outer step, which goes down how far the replicas have come on the "
        "mean; 0.7 is usual. None: they are averaged, gradients and state too",
        minimum=0.0,
        mesh=True,
    ),
    Option(
        "outer_momentum",
        float,
        OUTER_MOMENTUM,
        "Nesterov's momentum of the outer step",
        minimum=0.0,
        mesh=True,
    ),
    Option(
        "fragments",
        int,
        1,
        "parts of the model that come together in turn, each every so many steps: smaller "
        "messages, more of them; of the outer step",
        minimum=1,
        mesh=True,
    ),
)
