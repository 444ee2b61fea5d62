"""What others have published, and what each table needs to be foretold."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import final

from dream.tools.plan import hardware as machines
from dream.tools.plan.forecast import shown
from dream.tools.plan.hardware import BANDWIDTH_REACHED, GB, Hardware, NetworkLink
from dream.tools.plan.published.transformer import Gpt, Sharded, TransformerLayout
from dream.tools.plan.traffic import Message


@final
@dataclass(frozen=True, slots=True)
class PublishedRow:
    """A row of a published table.

    foretell: what the table's constant gives. published: in the table's unit.
    """

    label: str
    published: float
    foretell: Callable[[float], float]


@final
@dataclass(frozen=True, slots=True)
class Table:
    """A published table of training speeds.

    constant: what its first row fits, the only one there is, between 0 and 1. rests_on: what
    else a forecast takes, from where.
    """

    title: str
    unit: str
    source: str
    constant: str
    rests_on: str
    rows: Sequence[PublishedRow]


_REACHED = "share of the peak FLOP/s that matrix products reach"
_LINKS = "links and memory reach the same 80 % of their peaks as in every plan"
_SELENE = machines.preset("a100-dgx")
_A100 = 312e12


def _reaching(hardware: Hardware, peak: float, reached: float) -> Hardware:
    rate = peak * reached
    rates = {"float16": {"matmul": rate, "convolution": rate, "other": rate}}
    return replace(hardware, flops=rates)  # type: ignore[arg-type]  # of every kind


def _tflops(
    gpt: Gpt, spread: TransformerLayout | Sharded, hardware: Hardware
) -> Callable[[float], float]:
    """Of a device, as the papers count them: recomputed ones too."""

    def foretell(reached: float) -> float:
        seconds = spread.seconds(gpt, _reaching(hardware, _A100, reached))
        return gpt.flops(spread.batch) / spread.devices / seconds / 1e12

    return foretell


def _megatron() -> list[PublishedRow]:
    """Parameters in 1e9; heads, width, layers; tensor, pipeline; devices, batch; TFLOP/s."""
    published = (
        ("1.7", 24, 2304, 24, 1, 1, 32, 512, 137),
        ("3.6", 32, 3072, 30, 2, 1, 64, 512, 138),
        ("7.5", 32, 4096, 36, 4, 1, 128, 512, 142),
        ("18.4", 48, 6144, 40, 8, 1, 256, 1024, 135),
        ("39.1", 64, 8192, 48, 8, 2, 512, 1536, 138),
        ("76.1", 80, 10240, 60, 8, 4, 1024, 1792, 140),
        ("145.6", 96, 12288, 80, 8, 8, 1536, 2304, 148),
        ("310.1", 128, 16384, 96, 8, 16, 1920, 2160, 155),
        ("529.6", 128, 20480, 105, 8, 35, 2520, 2520, 163),
        ("1008.0", 160, 25600, 128, 8, 64, 3072, 3072, 163),
    )
    return [
        PublishedRow(
            f"{size}e9 on {devices}, {tensor} x {pipeline}", tflops,
            _tflops(
                Gpt(layers, heads, width),
                TransformerLayout(devices, batch, tensor, pipeline),
                _SELENE,
            ),
        )
        for size, heads, width, layers, tensor, pipeline, devices, batch, tflops in published
    ]  # fmt: skip


_GPT3, _GPT530 = Gpt(96, 96, 12288), Gpt(105, 128, 20480)


def _without_hosts(hardware: Hardware) -> Hardware:
    """Each device fetches every shard over its own network card."""
    return replace(hardware, per_host=1)


def _zero3() -> list[PublishedRow]:
    published = (
        ("174.6", _GPT3, 384, 4, 144), ("174.6", _GPT3, 768, 2, 88), ("174.6", _GPT3, 1536, 1, 44),
        ("529.6", _GPT530, 640, 4, 138), ("529.6", _GPT530, 1120, 2, 98),
        ("529.6", _GPT530, 2240, 1, 48),
    )  # fmt: skip
    return [
        PublishedRow(
            f"{size}e9 on {devices}, {samples} each", tflops,
            _tflops(gpt, Sharded(devices, samples), _without_hosts(_SELENE)),
        )
        for size, gpt, devices, samples, tflops in published
    ]  # fmt: skip


def _ptd() -> list[PublishedRow]:
    published = (
        ("174.6", _GPT3, 12, 384, 1536, 153), ("174.6", _GPT3, 12, 768, 1536, 149),
        ("174.6", _GPT3, 12, 1536, 1536, 141), ("529.6", _GPT530, 35, 560, 2240, 171),
        ("529.6", _GPT530, 35, 1120, 2240, 167), ("529.6", _GPT530, 35, 2240, 2240, 159),
    )  # fmt: skip
    return [
        PublishedRow(
            f"{size}e9 on {devices}, 8 x {stages}", tflops,
            _tflops(
                gpt,
                TransformerLayout(devices, batch, 8, stages, 1, interleaved=False),
                _SELENE,
            ),
        )
        for size, gpt, stages, devices, batch, tflops in published
    ]  # fmt: skip


def _fsdp() -> list[PublishedRow]:
    """Hosts of 8 that share 2 Tbit/s."""
    far = NetworkLink(machines.NETWORK_HOP, 250 / 8 * GB * BANDWIDTH_REACHED)
    hosts = replace(_SELENE, far=far)
    published = ((128, 1, 173), (512, 1, 173), (128, 2, 186), (512, 2, 186))
    return [
        PublishedRow(
            f"{devices} devices, {samples} each", tflops,
            _tflops(_GPT3, Sharded(devices, samples), hosts),
        )
        for devices, samples, tflops in published
    ]  # fmt: skip


_FUSED = 64 << 20
"""Bytes: Horovod adds up as much at a time."""
_SAMPLES = 64
_PARAMETERS = {"Inception V3": 23.8e6, "ResNet-101": 44.5e6, "VGG-16": 138.4e6}
_ALONE = {"Inception V3": 142.0, "ResNet-101": 129.0, "VGG-16": 154.0}
"""Images a second of one P100: tensorflow.org/performance/benchmarks (2017, synthetic data, 64 at a
time); ResNet-101 by its operations between ResNet-50's 219 and ResNet-152's 91.8."""
_BACKWARD = 2 / 3
"""Of a step: backward is twice forward."""


def _horovod() -> list[PublishedRow]:
    """Servers of 4 GPUs on PCIe 3, 25 Gbit/s each. In per cent of as many devices alone."""
    pcie = NetworkLink(machines.PCIE_HOP, machines.PCIE_3 * GB * BANDWIDTH_REACHED)
    network = NetworkLink(machines.NETWORK_HOP, 25 / 8 / 4 * GB * BANDWIDTH_REACHED)
    hosts = replace(_SELENE, per_host=4, near=pcie, far=network)
    published = (
        (128, "Inception V3", 90), (128, "ResNet-101", 90), (128, "VGG-16", 79),
        (512, "Inception V3", 90), (512, "ResNet-101", 90), (512, "VGG-16", 68),
    )  # fmt: skip
    return [
        PublishedRow(f"{name}, {devices} devices", percent, _scaled(name, devices, hosts))
        for devices, name, percent in published
    ]


def _scaled(name: str, devices: int, hosts: Hardware) -> Callable[[float], float]:
    alone, size = _SAMPLES / _ALONE[name], 4 * _PARAMETERS[name]
    calls = -(-int(size) // _FUSED)
    summed = Message("all_reduce", size / calls, devices, count=calls, when="backward")

    def foretell(kept: float) -> float:
        computing = alone / kept
        sending = shown([summed], "backward", computing * _BACKWARD, hosts)
        return 100 * alone / (computing + sending)

    return foretell


def tables() -> list[Table]:
    return [
        Table(
            "Megatron-LM, GPT of 1.7e9 to 1e12 parameters on 32 to 3,072 A100", "TFLOP/s",
            "arXiv:2104.04473, table 1", _REACHED,
            f"{_LINKS}; microbatches and interleaved stages, which the table leaves out, are those "
            "that are quickest", _megatron(),
        ),
        Table(
            "Megatron-LM, tensors and pipeline at a fixed batch", "TFLOP/s",
            "arXiv:2104.04473, table 2", _REACHED,
            f"{_LINKS}; 1F1B without interleaving, one sample a microbatch", _ptd(),
        ),
        Table(
            "ZeRO-3 without model parallelism at a fixed batch", "TFLOP/s",
            "arXiv:2104.04473, table 2", _REACHED,
            f"{_LINKS}; every device fetches each shard over its own network card: with shards "
            "gathered once a host, as NCCL does, sending would hide in all rows", _zero3(),
        ),
        Table(
            "FSDP, GPT of 175e9 parameters on A100", "TFLOP/s",
            "arXiv:2304.11277, section 5.4 (more than 173 and 186)", _REACHED,
            f"{_LINKS}; shards are gathered once a host", _fsdp(),
        ),
        Table(
            "Horovod, images on P100 at 25 Gbit/s", "% of linear",
            "arXiv:1802.05799 and Horovod's page of benchmarks",
            "a device's own speed among others, of what it has alone",
            f"{_LINKS}; a device alone as in tensorflow.org/performance/benchmarks", _horovod(),
        ),
    ]  # fmt: skip
