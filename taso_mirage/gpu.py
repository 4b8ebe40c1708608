"""What the analytic models know of a device, a GPU first: they rank where nothing can be measured."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Device:
    """Bytes and operations (of the tensor cores) a second, bytes of shared memory and of registers of a processor, seconds to load and to
    launch, threads and small blocks that a processor holds, and the bytes that memory gives at least.

    `longest`: elements of one label in a block, at most, where the grid cuts it. `elementwise`: operations of a product that take the time
    of one on elements. `padded`: rows and columns that a product's tile has at least. `general`: it loads ahead by itself, in a loop or
    not, and its blocks may be equal shares of any size. `line`: bytes that memory gives at least where a kernel does not iterate, if
    more than a sector; `started`: seconds that each block of such a kernel adds, until the processors are full."""

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
    loaded: float = 1.2e-6
    line: int = 0
    started: float = 0.0


H100 = Device("H100", 132, 3.0e12, 5.5e12, 6.0e14, sector=64, batched=200.0, launch=1.4e-6, line=128, started=3e-9)
