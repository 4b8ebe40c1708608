"""Predicted seconds of a kernel on a GPU, from its work in each of many tilings.

Four things overlap: the bytes of its tensors come from memory, all that blocks move comes from the
L2 cache, operations are computed, and the steps of a block wait one for the other. Together they
take a p-norm of their times, which is between the longest and the sum. The costs of a launch, and
of the exchanges of a cluster, come on top; with more values than registers all of it takes longer.
The share of a device's rates that kernels reach, and the cost of the rest, are `Coefficients`,
which `bench/kernel_model.py` fits to measured programs. The prediction only ranks kernels; a
measurement gives the time.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import cache
from importlib.resources import files

import numpy as np

from taso_mirage.devices.device import Device
from taso_mirage.mugraph.derivations.kind import TileCounts
from taso_mirage.mugraph.tile_work import KernelWork

FITTED = "kernel_seconds.json"
"""The file with the coefficients, in this folder."""
LANES = 128 * 1.7e9
"""Operations on elements that a processor does in a second."""
REGISTERS, OWN, MOST = 65536, 32, 255
"""The registers of a processor, the registers of a thread that are used for addresses, and the
largest number of registers of a thread."""
TOGETHER = 32
"""The largest number of blocks of a processor at a time."""
WARPS, MATRIX_ROWS = 4, 64
"""On Hopper, WARPS warps share a product of at least MATRIX_ROWS rows."""
PIECE = 8192
"""Bytes that a cluster combines, of which `Coefficients.exchange` is."""
LONGEST = 4.0
"""The logarithm of the largest slow-down of a kernel that keeps values in memory."""
STAGES, ROOM = 4, (160 * 1024, 2)
"""The first schedule (`emit/gpu/program.py`): the largest number of stages, and the bytes of
shared memory for them where a block is alone on its processor, else the divisor of all shared
memory."""


@dataclass(frozen=True, slots=True)
class Coefficients:
    """Shares of a device's rates, without a unit: `bandwidth`, `cache`, `products`, those with a
    dim more (`batched`), and of `products` those of few rows (`small`). Microseconds: a first
    launch and a `later` one, the `start` of a block, each iteration (`step`) and as divided by the
    stages (`latency`), a step of a `chain` in an iteration or besides (`chain_once`), an operand
    that is `computed`, how long bytes from memory are on their way (`distance`), the time of a
    cluster to meet (`meeting`) and to `exchange` a PIECE. Instructions of a lane: `element`,
    `function` and `fold`. `warps` of a processor reach half of its rate, `matrix_warps` half of the
    tensor cores'. `tail`: the idle share of a last wave; `cluster`: of all, for each further block
    of one. A thread has registers for `room` values: the words that it loads count `word` times,
    lanes of the largest tile `lane` times, beside products `product_lane` times; `spilled`: for
    each doubling above that. `norm` and `norm_once`: the p, with a loop and without. `alone`: of
    all, for a loop that has no loads in flight while it computes.
    """

    bandwidth: float
    cache: float
    products: float
    batched: float
    small: float
    launch: float
    later: float
    start: float
    step: float
    latency: float
    chain: float
    chain_once: float
    computed: float
    distance: float
    meeting: float
    exchange: float
    element: float
    function: float
    fold: float
    warps: float
    matrix_warps: float
    tail: float
    cluster: float
    room: float
    word: float
    lane: float
    product_lane: float
    spilled: float
    norm: float
    norm_once: float
    alone: float


@cache
def fitted() -> Coefficients:
    """The coefficients that are shipped."""
    text = files("taso_mirage.mugraph").joinpath(FITTED).read_text()
    return Coefficients(**json.loads(text)["coefficients"])


def first_schedule(work: KernelWork, device: Device) -> tuple[TileCounts, TileCounts]:
    """The warps and the stages that the generator of code guesses (`guessed`)."""
    once = work.iterations == 1
    alone, part = ROOM
    room = np.where(work.blocks <= device.processors, alone, device.shared // part)
    stages = np.clip(room // np.maximum(work.flying, 1), 1, np.minimum(STAGES, work.iterations))
    few = _power_of_two(work.largest // np.where(work.later > 0, 2048, 512))
    many = _power_of_two(work.largest // 2048)
    return np.where(once, np.clip(few, 1, 8), np.clip(many, 4, 8)), np.where(once, 1, stages)


def _power_of_two(n: TileCounts) -> TileCounts:
    return np.asarray(2.0 ** np.ceil(np.log2(np.maximum(n, 1))))


def seconds_of_work(
    work: KernelWork,
    device: Device,
    known: Coefficients,
    schedule: tuple[TileCounts, TileCounts] | None = None,
) -> TileCounts:
    """Seconds of each tiling, with its warps and stages, or as the generator guesses them."""
    warps, stages = schedule or first_schedule(work, device)
    once = work.iterations == 1
    values = _values(work, known) / (32 * warps)
    held = np.where(once, np.where(work.products > 0, work.held, 0), work.flying * stages)
    room = device.shared / np.maximum(held + work.exchanged, 1)
    registers = REGISTERS / (32 * warps * np.minimum(OWN + values, MOST))
    beside = np.floor(np.minimum(np.minimum(room, registers), np.minimum(device.threads / (32 * warps), TOGETHER)))
    usable = device.processors // work.cluster * work.cluster * np.maximum(beside, 1)
    running = np.minimum(work.blocks, usable)
    waves = np.ceil(work.blocks / usable)
    busy = np.minimum(1, work.blocks / device.processors)
    rounds = (1 + known.tail * (waves * running / work.blocks - 1)) / busy  # in which the rates are reached
    flying = running * (np.where(once, work.held, 0) + work.flying * np.minimum(stages, work.iterations)) + 1
    memory = work.unique * (1 / (device.bandwidth * known.bandwidth) + known.distance * 1e-6 / flying)
    moved = (work.looped * work.iterations + work.loaded + work.stored) * work.blocks
    cache = moved / (device.cache * known.cache) * rounds
    there = warps * np.minimum(np.ceil(work.blocks / device.processors), np.maximum(beside, 1))
    computing = _computing(work, device, known, warps, there) * rounds
    waiting = _waiting(work, known, stages) * waves
    p = np.where(once, known.norm_once, known.norm)
    found = (memory**p + cache**p + computing**p + waiting**p) ** (1 / p)
    over = np.maximum(np.log2(np.maximum(values, 1) / known.room), 0)
    found = found * np.exp(np.minimum(known.spilled * over, LONGEST)) * (1 + known.cluster * (work.cluster - 1))
    found = found * np.where((stages < 2) & ~once, 1 + known.alone, 1)
    met = (work.meetings * known.meeting + work.exchanged / PIECE * known.exchange) * 1e-6 * waves
    launch = np.where(work.later > 0, known.later, known.launch) * 1e-6
    return np.asarray(found + np.where(work.cluster > 1, met, 0) + launch)


def _values(work: KernelWork, known: Coefficients) -> TileCounts:
    """How many values a block has in registers: with products in a loop the sums, and the values
    for all iterations; else the loaded values, and its largest tile."""
    words = work.held / 4
    lane = np.where(work.products > 0, known.product_lane, known.lane)
    looped = work.summed / 4 + work.held / 4
    return np.where((work.products > 0) & (work.iterations > 1), looped, known.word * words + lane * work.largest)


def _computing(
    work: KernelWork, device: Device, known: Coefficients, warps: TileCounts, there: TileCounts
) -> TileCounts:
    """Seconds of all operations on a full GPU; `there`: warps of a processor."""
    matrices = np.where((work.rows >= MATRIX_ROWS) & (warps >= WARPS), 1, known.small)
    share = known.products * matrices * there / (there + known.matrix_warps)
    products = (work.dots * work.iterations + work.dots_once) / share
    products = products + (work.batched * work.iterations + work.batched_once) / known.batched
    lanes = (work.lanes * work.iterations + work.lanes_once) * known.element
    lanes = lanes + work.functions * known.function + work.folds * known.fold
    on_lanes = lanes / (device.processors * LANES) * (1 + known.warps / there)
    return np.asarray((products / device.flops + on_lanes) * work.blocks)


def _waiting(work: KernelWork, known: Coefficients, stages: TileCounts) -> TileCounts:
    """Seconds of a block whose steps take no time but to wait one for the other."""
    each = known.latency / stages + known.step + known.chain * work.chain
    once = known.start + known.chain_once * work.chain_once + known.computed * work.computed_once
    return np.asarray((work.iterations * each + once) * 1e-6)
