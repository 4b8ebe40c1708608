"""Parameters of a device for the analytic models, which rank candidates that cannot be measured.

Each target describes its own.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Reached:
    """The speed that one operator of a runtime reaches, far from the device's peak: seconds to
    start it, operations and bytes a second. This is the roofline of passes and search. `slow`:
    factors for operators that take longer, by their names."""

    launch: float = 3e-6
    flops: float = 5e10
    bandwidth: float = 1e10
    slow: Mapping[str, float] = field(default_factory=dict, hash=False)


@dataclass(frozen=True, slots=True)
class Device:
    """The limits of a kernel: bytes and operations (of the tensor cores) a second, bytes of shared
    memory and of registers of a processor, seconds to load and to launch, threads and small blocks
    that a processor holds, and the bytes that memory gives at least.

    `longest`: elements of one label in a block, at most, where the grid cuts it. `elementwise`:
    operations of a product that take the time of one on elements. `padded`: rows and columns that a
    product's tile has at least. `general`: it loads ahead by itself, in a loop or not, and its
    blocks may be equal shares of any size. `line`: bytes that memory gives at least where a kernel
    does not iterate, if more than a sector. `cluster`: blocks that may be one, at most.
    `specialized`: attention is also measured in the form whose warps have roles
    (`gpu/warp_specialized.py`). `rounds`: operands of products in single precision may be rounded
    to TF32 there. `operator`: the speed of one operator of the runtime there.
    """

    name: str
    processors: int
    bandwidth: float
    cache: float
    flops: float
    shared: int = 227 * 1024
    registers: int = 200 * 1024
    threads: int = 2048
    latency: float = 0.8e-6
    launch: float = 2e-6
    resident: int = 4
    sector: int = 32
    longest: int = 256
    elementwise: int = 40
    padded: int = 16
    general: bool = False
    batched: float = 1.0
    line: int = 0
    cluster: int = 1
    specialized: bool = False
    rounds: bool = False
    operator: Reached = Reached()
