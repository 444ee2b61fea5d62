"""How an update is made: micro-batches, clipping, precision, what travels. One meaning in both
frameworks, whatever the strategy; what does not go together is refused here."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any, Self

from dream._errors import ConfigurationError, Unsupported
from dream.files import sizes
from dream.update.compression import Compression
from dream.update.fitting import AUTO
from dream.update.precision import PRECISIONS

Options = Mapping[str, object]


@dataclass(frozen=True, slots=True)
class UpdateOptions:
    """What was asked for. Each field is an option of the same name.

    accumulate: micro-batches to an update; or "auto", as many as memory asks for.
    clip_norm, clip_value: of the global gradient.
    precision: a row of `update.precision.PRECISIONS`.
    recompute: what is computed again in backward.
    memory_budget: what activations may take under recompute="auto".
    sync_batch_norm: whether statistics are of the global batch; None where that is exact.
    compression: as `compression.Compression` reads it. op: how gradients become one.
    autotune: whether the ring tunes itself. strict: raise where a loss is not understood.
    """

    accumulate: int | str = 1
    clip_norm: float | None = None
    clip_value: float | None = None
    precision: str = "float32"
    recompute: bool | str | Sequence[str] = False
    memory_budget: float | str | None = None
    sync_batch_norm: bool | None = None
    compression: str | None = None
    op: str = "mean"
    autotune: bool = False
    strict: bool = False

    @classmethod
    def of(cls, options: Options) -> Self:
        """Those that a strategy takes; the others are not asked for."""
        given: dict[str, Any] = {f.name: options[f.name] for f in fields(cls) if f.name in options}
        return cls(**given)

    @property
    def asked(self) -> bool:
        """Whether anything is to be done beside plain steps."""
        return self != type(self)()

    def only(
        self, taken: Mapping[str, Collection[object]], by: str, advice: str = "Remove it."
    ) -> None:
        """Refuse what `by` cannot honour. taken: what it can, by name; empty for any value.
        advice: what works instead."""
        for field in fields(self):
            value = getattr(self, field.name)
            values = taken.get(field.name, (field.default,))
            if values and value != field.default and value not in values:
                raise Unsupported(
                    f"{by} does not support this option. Received: {field.name}={value!r}. It "
                    f"takes: {', '.join(sorted(taken)) or 'none of these'}. {advice}"
                )

    @property
    def fits(self) -> bool:
        """Whether the number of micro-batches follows memory."""
        return self.accumulate == AUTO

    @property
    def micros(self) -> int:
        """Micro-batches to an update, at the beginning where their number follows memory."""
        return self.accumulate if isinstance(self.accumulate, int) else 1

    @property
    def accumulates(self) -> bool:
        return self.fits or self.micros > 1

    def refuse_fitting(self, by: str) -> None:
        """Refuse `accumulate="auto"` where an update is not begun again when memory runs out."""
        if self.fits:
            raise Unsupported(
                f"{by} cannot choose the number of micro-batches automatically. Received: "
                f"accumulate={AUTO!r}. Pass a number, as in accumulate=4. On torch train_step, and "
                "fit of Keras models, find it under 'single', 'mirrored', 'multi_worker_mirrored' "
                "and 'horovod'."
            )

    def refuse_choosing(self, by: str) -> None:
        """Refuse `recompute="auto"` where blocks are not measured."""
        if self.recompute == AUTO:
            raise Unsupported(
                f"{by} cannot choose what to recompute automatically. Received: "
                f"recompute={AUTO!r}. Pass recompute=True, or name layers. Torch modules choose "
                "under 'single', 'mirrored', 'multi_worker_mirrored', 'horovod', 'sharded', "
                "'data_parallel' and split='tensor'."
            )

    @property
    def casts(self) -> bool:
        return self.precision != "float32"

    @property
    def synchronises(self) -> bool:
        """Whether BatchNorm sees all ranks' samples."""
        return not self.accumulates if self.sync_batch_norm is None else self.sync_batch_norm

    @property
    def compressed(self) -> Compression | None:
        return None if self.compression is None else Compression.parse(self.compression)

    @property
    def clips(self) -> bool:
        return self.clip_norm is not None or self.clip_value is not None


@dataclass(frozen=True, slots=True)
class _Conflict:
    """Options that break each other. why: what would happen, and what to do."""

    names: tuple[str, ...]
    breaks: Callable[[Options], bool]
    why: str


def _remembers(compression: object) -> bool:
    return isinstance(compression, str) and Compression.parse(compression).remembers


def _as_it_is(name: str, default: object) -> _Conflict:
    """What changes gradients on their way, or where they lie, beside micro-batches that fit."""
    return _Conflict(
        (name, "accumulate"),
        lambda o: o["accumulate"] == AUTO and o[name] != default,
        "Where the number of micro-batches follows memory, gradients travel as they are. Remove "
        f"{name}, or give a number of micro-batches.",
    )


_CONFLICTS = (
    _Conflict(
        ("clip_norm", "clip_value"),
        lambda o: o["clip_norm"] is not None and o["clip_value"] is not None,
        "A gradient is clipped by its norm or by its values, since either undoes what the other "
        "promises. Remove one.",
    ),
    _Conflict(
        ("memory_budget", "recompute"),
        lambda o: o["memory_budget"] is not None and o["recompute"] != AUTO,
        "A budget says how much is computed again where that is chosen. Pass recompute='auto', or "
        "remove memory_budget.",
    ),
    _Conflict(
        ("recompute", "accumulate"),
        lambda o: o["recompute"] == AUTO and o["accumulate"] == AUTO,
        "What is computed again and how many micro-batches there are cannot both follow memory. "
        "Give a number of micro-batches, or pass recompute=True.",
    ),
    _Conflict(
        ("static_graph", "accumulate"),
        lambda o: bool(o["static_graph"]) and o["accumulate"] != 1,
        "A static graph is recorded in the first backward, which reduces nothing under "
        "accumulation, and DDP breaks. Remove static_graph.",
    ),
    _Conflict(
        ("sync_batch_norm", "accumulate"),
        lambda o: bool(o["sync_batch_norm"]) and o["accumulate"] != 1,
        "Statistics of a micro-batch are not those of the global batch, which is not there as a "
        "whole. Remove one.",
    ),
    _as_it_is("compression", None),
    _as_it_is("op", "mean"),
    _as_it_is("one_copy", False),
    _Conflict(
        ("op", "compression"),
        lambda o: o["op"] == "adasum" and o["compression"] is not None,
        "Adasum weighs whole gradients, and compressed ones are sums already. Remove one.",
    ),
    _Conflict(
        ("compression", "precision"),
        lambda o: _remembers(o["compression"]) and PRECISIONS[str(o["precision"])].scales,
        "What is not sent waits for the next gradient, and the loss scale changes meanwhile. Use "
        "compression='float16', or precision='bfloat16', which needs no scale.",
    ),
    _Conflict(
        ("zero", "cpu_offload"),
        lambda o: o["zero"] == 1 and bool(o["cpu_offload"]),
        "Under zero=1 each rank computes with whole parameters, which lie where they are computed "
        "with. Use zero=3, or zero=2.",
    ),
    _Conflict(
        ("zero", "prefetch"),
        lambda o: o["zero"] == 1 and o["prefetch"] is not None,
        "Under zero=1 parameters are whole, and nothing is gathered for a part. Use zero=3, or "
        "zero=2.",
    ),
    _Conflict(
        ("static_graph", "find_unused"),
        lambda o: bool(o["static_graph"] and o["find_unused"]),
        "A static graph finds unused parameters by itself, once. Remove find_unused.",
    ),
)


def check(options: Options) -> None:
    """Refuse what does not go together. options: every one of a strategy, with its value."""
    if isinstance(compression := options.get("compression"), str):
        Compression.parse(compression)
    names = options.get("recompute")
    if isinstance(names, (list, tuple)) and not (names and all(isinstance(n, str) for n in names)):
        raise ConfigurationError(
            f"Layers to recompute must be named as in model.named_modules(). Received: {names!r}. "
            "Give a list of names, 'sqrt', 'auto', or True for all."
        )
    if isinstance(budget := options.get("memory_budget"), str):
        sizes.parse(budget)
    for conflict in _CONFLICTS:
        if all(name in options for name in conflict.names) and conflict.breaks(options):
            received = ", ".join(f"{name}={options[name]!r}" for name in conflict.names)
            what, _, advice = conflict.why.partition(". ")
            raise ConfigurationError(f"{what}. Received: {received}. {advice}")
