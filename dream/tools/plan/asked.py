"""Check what is asked of a plan before anything starts."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, final, get_args

from dream._errors import ConfigurationError, unknown
from dream.tools.plan.goodput import Reliability

Optimizer = Literal["sgd", "momentum", "adam", "adamw"]
Precision = Literal["float32", "bfloat16", "mixed_bfloat16", "mixed_float16"]
OPTIMIZERS: tuple[Optimizer, ...] = get_args(Optimizer)
PRECISIONS: tuple[Precision, ...] = get_args(Precision)
"""As Keras names them: mixed ones keep parameters in float32."""
MOST = 100_000
"""Devices: more are in no machine."""
_LEAST = 1 << 10
"""Bytes of a device."""


@final
@dataclass(frozen=True, slots=True)
class TrainingSpec:
    """The optimizer and precision of a step. fused: the optimizer takes all parameters at
    once. recompute: values inside layers are computed again in backward."""

    optimizer: Optimizer
    precision: Precision
    fused: bool
    recompute: bool = False

    def __post_init__(self) -> None:
        if self.optimizer not in OPTIMIZERS:
            raise unknown("optimizer", self.optimizer, OPTIMIZERS)
        if self.precision not in PRECISIONS:
            raise unknown("precision", self.precision, PRECISIONS)

    def request(self, strategy: str) -> str:
        """A strategy's request, with what of the training it is to be told."""
        if not self.recompute:
            return strategy
        return f"{strategy}{',' if ':' in strategy else ':'}recompute=true"

    @property
    def timed(self) -> bool:
        """Whether its operations are timed one by one: on this machine, where none is fused."""
        return not self.fused

    @property
    def computes_in(self) -> str:
        return self.precision.removeprefix("mixed_")


def check_positive(what: str, value: float) -> None:
    if not value >= 1:  # nan too
        raise ConfigurationError(
            f"{what} must be at least 1. Received: {value}. Give a larger number."
        )


def check_devices(what: str, devices: int) -> None:
    check_positive(what, devices)
    if devices > MOST:
        raise ConfigurationError(
            f"The number of devices is too large. Received: {what} {devices}. Give at most "
            f"{MOST:,}."
        )


@final
@dataclass(frozen=True, slots=True)
class PlanRequest:
    """What `dream plan` is asked for.

    place: file.py:function. batch_size: the global one, None for the example's. memory: bytes
    of a device, None for the hardware's. scale: numbers of devices to simulate, with as many
    samples on each as there are on one of `devices`. reliability: of devices that fail.
    """

    place: str
    devices: int
    memory: int | None
    batch_size: int | None
    training: TrainingSpec
    scale: tuple[int, ...] = ()
    reliability: Reliability | None = None

    def __post_init__(self) -> None:
        check_devices("--devices", self.devices)
        if self.memory is not None and self.memory < _LEAST:
            raise ConfigurationError(
                f"The device memory is too small. Received: --device-memory, {self.memory} bytes. "
                "Write it with its unit, like 80GB."
            )
        if self.batch_size is not None:
            check_positive("--batch-size", self.batch_size)
        for devices in self.scale:
            check_devices("--scale", devices)
