"""Describe devices and the links between them: this machine's, or a known one's.

Presets' peaks are the makers' figures, without sparsity; what share of them a training step reaches
is an assumption, the same for all, and stated as such wherever it is used.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import final

from dream._errors import Unsupported, unknown
from dream.tools.plan.sketch import Kind, SketchedOp


@final
@dataclass(frozen=True, slots=True)
class NetworkLink:
    """A link between devices or hosts.

    latency: seconds before the first byte of a message; bandwidth: bytes a second that a
    device sends while it receives as many.
    """

    latency: float
    bandwidth: float


@final
@dataclass(frozen=True, slots=True)
class Hardware:
    """Devices in hosts.

    memory: bytes of a device, None where it is not known; flops: by dtype and kind of operation,
        a second; bandwidth: bytes a second to and from the device's memory.
    launch: seconds that each operation costs whatever it does.
    known: seconds of operations that were timed by themselves, by call; overheads: what each of
        these costs in a step besides, by strategy; beside: the same of the strategy at hand.
    per_host: devices that share a host; near: the link between them; far: between hosts, for
        each device while all of its host send. call: seconds that each collective costs besides.
    overlaps: whether devices send while they compute; fused: whether an optimizer's step takes
        all parameters at once, with temporaries for all.
    fresh: seconds of each byte that the system must give anew, step by step.
    host: the link of each device to the memory of its host, None where that is its own or is not
        known; host_bandwidth: bytes a second of that memory, for each device.
    sources: of the figures, and what of them is assumed.
    """

    name: str
    memory: int | None
    flops: Mapping[str, Mapping[Kind, float]]
    bandwidth: float
    launch: float
    per_host: int
    near: NetworkLink
    far: NetworkLink
    call: float
    overlaps: bool
    fused: bool
    sources: tuple[str, ...]
    known: Mapping[str, float] = field(default_factory=dict)
    overheads: Mapping[str, float] = field(default_factory=dict)
    beside: float = 0.0
    fresh: float = 0.0
    host: NetworkLink | None = None
    host_bandwidth: float = 0.0

    @property
    def host_link(self) -> NetworkLink:
        """The link to the host, where there is one."""
        assert self.host is not None
        return self.host

    def under(self, strategy: str) -> Hardware:
        """As it is for one strategy."""
        return replace(self, beside=self.overheads.get(strategy, self.beside))

    def seconds(self, op: SketchedOp, dtype: str, share: float = 1.0) -> float:
        """One operation, of which a device does a share: what it took by itself, where it was
        timed (as in Jia et al., arXiv:1807.05358, section 5.1); else the longer of computing and of
        moving bytes (the roofline; Williams, Waterman, Patterson, CACM 52(4), 2009)."""
        if op.call in self.known:
            return share * self.known[op.call] + self.beside
        rate = self.rates(dtype)[op.kind]
        return share * max(op.flops / rate, op.moved / self.bandwidth) + self.launch

    def rates(self, dtype: str) -> Mapping[Kind, float]:
        if dtype not in self.flops:
            raise Unsupported(
                f"{self.name} does not compute in this precision. Received: {dtype}. Use one of: "
                f"{', '.join(self.flops)}."
            )
        return self.flops[dtype]


Machine = Callable[[int, Iterable[SketchedOp]], Hardware]
"""So many devices of a machine, for a step of some operations: each has the same, save where ranks
share a CPU's cores."""
GB, GIB, TFLOP = 1e9, 1 << 30, 1e12
FLOPS_REACHED = 0.5
"""Of the peak, in matrix products and convolutions: Megatron-LM trains at 44 to 52 % of A100's
(Narayanan et al., SC 2021, arXiv:2104.04473, table 1), PaLM at 46 % (arXiv:2204.02311, table 3)."""
BANDWIDTH_REACHED = 0.8
"""Of memory and links: BabelStream reads 80 to 90 % of the peak of GPU memory; NCCL's tests 75 to
85 % of NVLink's (github.com/NVIDIA/nccl-tests, doc/PERFORMANCE.md, says what bus bandwidth is)."""
LAUNCH = 5e-6
"""Seconds: an operation of an eager framework."""
PCIE_3, PCIE_4 = 15.75, 31.5
"""GB/s of 16 lanes, one way: 8 and 16 GT/s a lane, of which 128 of 130 bits are data (PCI-SIG)."""
PCIE_5 = 63.0
HOST_MEMORY = 25.6
"""GB/s of a host's memory for each device: a channel of DDR4-3200 (JEDEC JESD79-4)."""
NVLINK_HOP, PCIE_HOP, NETWORK_HOP, CALL = 3.4e-6, 5.7e-6, 14e-6, 8.4e-6
"""Seconds of NCCL's ring, protocol Simple, and of each call: its tuning model
(github.com/NVIDIA/nccl, src/graph/tuning.cc, hwLat and baseLat)."""
_NCCL = "latencies: github.com/NVIDIA/nccl, src/graph/tuning.cc of 2022 and later"


def _reached(flops: float, bandwidth: float) -> str:
    return (
        f"assumed: {flops:.0%} of the peak FLOP/s (arXiv:2104.04473, arXiv:2204.02311) and "
        f"{bandwidth:.0%} of bandwidths are reached; an operation costs {LAUNCH * 1e6:.0f} us"
    )


def made(
    name: str,
    memory: float,
    tflops: Mapping[str, float],
    bandwidth: float,
    per_host: int,
    near: tuple[float, float],
    host_network: float,
    sources: tuple[str, ...],
    *,
    flops_reached: float = FLOPS_REACHED,
    bandwidth_reached: float = BANDWIDTH_REACHED,
    host_link: float | None = None,
) -> Hardware:
    """Make hardware of its makers' peaks. memory in GiB; bandwidth and links in GB/s, links one
    way: (latency, of a device). host_network: of a host, one way, which its devices share.
    host_link: of a device to its host's memory."""
    rates: dict[str, dict[Kind, float]] = {}
    for dtype, peak in tflops.items():
        reached = peak * TFLOP * flops_reached
        rates[dtype] = {"matmul": reached, "convolution": reached, "other": reached}
    latency, near_bandwidth = near
    share = host_network / per_host
    host = None
    if host_link is not None:
        host = NetworkLink(PCIE_HOP, host_link * GB * bandwidth_reached)
        sources = (*sources, _HOST.format(host_link, HOST_MEMORY))
    return Hardware(
        name=name,
        memory=round(memory * GIB),
        flops=rates,
        bandwidth=bandwidth * GB * bandwidth_reached,
        launch=LAUNCH,
        per_host=per_host,
        near=NetworkLink(latency, near_bandwidth * GB * bandwidth_reached),
        far=NetworkLink(NETWORK_HOP, share * GB * bandwidth_reached),
        call=CALL,
        overlaps=True,
        fused=True,
        sources=(*sources, _NCCL, _reached(flops_reached, bandwidth_reached)),
        host=host,
        host_bandwidth=HOST_MEMORY * GB * bandwidth_reached,
    )


_HOST = (
    "assumed, for cpu_offload: a device has {:g} GB/s each way to its host, whose memory gives "
    "{:g} GB/s (a channel of DDR4-3200) for each device"
)


_SHARED = "assumed: a device has its 16 lanes of PCIe to itself; a host's network card is {} Gb/s"
PRESETS: Mapping[str, Hardware] = {
    "gtx-1080-ti": made(
        "GTX 1080 Ti (4 in a host, PCIe 3, 10 Gb/s)", 11, {"float32": 11.3, "float16": 0.177}, 484,
        4, (PCIE_HOP, PCIE_3), 1.25,
        ("NVIDIA GeForce GTX 1080 Ti specifications: 3584 cores at 1.582 GHz, 11 GB, 484 GB/s, "
         "PCIe 3", "NVIDIA CUDA C++ programming guide, arithmetic instructions: capability 6.1 "
         "does a 64th as many float16 operations as float32 ones", _SHARED.format(10)),
        host_link=PCIE_3,
    ),
    "p100": made(
        "P100 PCIe (4 in a host, PCIe 3, 25 Gb/s)", 16, {"float32": 9.3, "float16": 18.7}, 732,
        4, (PCIE_HOP, PCIE_3), 3.125,
        ("NVIDIA Tesla P100 PCIe datasheet: 9.3 TFLOPS float32, 18.7 float16 without tensor cores, "
         "732 GB/s, PCIe 3 x16", "arXiv:1802.05799: servers of 4 P100, 25 Gb/s"),
        host_link=PCIE_3,
    ),
    "v100-p3": made(
        "V100 SXM2 (p3.8xlarge: 4 in a host, NVLink, 10 Gb/s)", 16,
        {"float32": 15.7, "float16": 125}, 900, 4, (NVLINK_HOP, 100), 1.25,
        ("NVIDIA V100 datasheet: 15.7 TFLOPS float32, 125 tensor, 900 GB/s, six NVLinks of 25 GB/s "
         "each way", "Amazon EC2 P3 instances: p3.8xlarge, 4 V100 of 16 GB, 10 Gb/s",
         "assumed: four of a device's six links reach the other three of its host"),
        host_link=PCIE_3,
    ),
    "a100-pcie": made(
        "A100 40GB PCIe (8 in a host, PCIe 4, 200 Gb/s)", 40,
        {"float32": 19.5, "tfloat32": 156, "bfloat16": 312, "float16": 312}, 1555,
        8, (PCIE_HOP, PCIE_4), 25,
        ("NVIDIA A100 datasheet: 19.5 TFLOPS float32, 156 TF32, 312 bfloat16, 1555 GB/s (40GB), "
         "PCIe 4 x16", _SHARED.format(200)),
        host_link=PCIE_4,
    ),
    "t4": made(
        "T4 (4 in a host, PCIe 3, 50 Gb/s)", 16, {"float32": 8.1, "float16": 65}, 320,
        4, (PCIE_HOP, PCIE_3), 6.25,
        ("NVIDIA T4 Tensor Core GPU datasheet: 8.1 TFLOPS float32, 65 mixed, 320 GB/s, PCIe 3 x16",
         "Amazon EC2 G4 instances: g4dn.12xlarge, 4 T4, 50 Gb/s"),
        host_link=PCIE_3,
    ),
    "v100": made(
        "V100 SXM2 with NVLink (p3dn: 8 in a host, 100 Gb/s)", 32,
        {"float32": 15.7, "float16": 125}, 900, 8, (NVLINK_HOP, 150), 12.5,
        ("NVIDIA V100 datasheet: 15.7 TFLOPS float32, 125 tensor, 900 GB/s, NVLink 300 GB/s both "
         "ways", "Amazon EC2 P3 instances: p3dn.24xlarge, 8 V100 of 32 GB, 100 Gb/s"),
        host_link=PCIE_3,
    ),
    "a100-p4d": made(
        "A100 40GB (p4d: 8 in a host, 400 Gb/s)", 40,
        {"float32": 19.5, "tfloat32": 156, "bfloat16": 312, "float16": 312}, 1555,
        8, (NVLINK_HOP, 300), 50,
        ("NVIDIA A100 datasheet: 19.5 TFLOPS float32, 156 TF32, 312 bfloat16, 1555 GB/s (40GB), "
         "NVLink 600 GB/s both ways", "Amazon EC2 P4 instances: p4d.24xlarge, 8 A100 of 40 GB, "
         "400 Gb/s"),
        host_link=PCIE_4,
    ),
    "a100-dgx": made(
        "A100 80GB (DGX: 8 in a host, 8 x 200 Gb/s)", 80,
        {"float32": 19.5, "tfloat32": 156, "bfloat16": 312, "float16": 312}, 2039,
        8, (NVLINK_HOP, 300), 200,
        ("NVIDIA A100 datasheet: 19.5 TFLOPS float32, 156 TF32, 312 bfloat16, 2039 GB/s (80GB "
         "SXM), NVLink 600 GB/s both ways",
         "NVIDIA DGX A100 datasheet: 8 single-port ConnectX-6/7 of 200 Gb/s for compute"),
        host_link=PCIE_4,
    ),
    "h100": made(
        "H100 SXM (DGX: 8 in a host, 8 x 400 Gb/s)", 80,
        {"float32": 67, "tfloat32": 494.5, "bfloat16": 989, "float16": 989}, 3350,
        8, (NVLINK_HOP, 450), 400,
        ("NVIDIA H100 datasheet, SXM: 67 TFLOPS float32, 989 TF32 and 1979 bfloat16 with sparsity, "
         "half without, 3.35 TB/s, NVLink 900 GB/s both ways",
         "NVIDIA DGX H100 datasheet: 8 ConnectX-7 of 400 Gb/s"),
        host_link=PCIE_5,
    ),
    "h200": made(
        "H200 SXM (DGX: 8 in a host, 8 x 400 Gb/s)", 140,
        {"float32": 67, "tfloat32": 494.5, "bfloat16": 989, "float16": 989}, 4800,
        8, (NVLINK_HOP, 450), 400,
        ("NVIDIA H200 datasheet, SXM: as H100, 4.8 TB/s; nvidia-smi shows 143771 MiB",
         "NVIDIA DGX H200 datasheet: 8 ConnectX-7 of 400 Gb/s"),
        host_link=PCIE_5,
    ),
}  # fmt: skip


def preset(name: str) -> Hardware:
    """Return the hardware of a name."""
    if name not in PRESETS:
        raise unknown("hardware", name, PRESETS)
    return PRESETS[name]
