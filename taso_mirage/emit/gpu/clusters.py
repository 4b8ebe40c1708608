"""Reductions over the blocks of a cluster: each block writes its elements to its own shared memory,
folds its share of them over all blocks through distributed shared memory, and writes that to all
blocks, or, where only one block stores the result, to that one.

All blocks run the same program, so a thread has the same elements in each of them, and the exchange
is elementwise: inline PTX, which the compiler does not analyze. A kernel that Triton itself splits
over a cluster (num_ctas) has the layout of its compiler, which does not know our blocks.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from taso_mirage.emit.gpu.tiles import Tile, Tiles
from taso_mirage.emit.statements import tl, v
from taso_mirage.errors import Unsupported
from taso_mirage.ir.mugraph import Lowering
from taso_mirage.ir.terms import Node, topological
from taso_mirage.operators.ops import traits

SOURCE = '''
@triton.constexpr_function
def exchange(over, blocks, to, threads, each):
    """PTX: elements are folded in the order of the blocks, each by one block, and get to the first
    ones: all have the same."""
    share, fold = each * threads // blocks, {"sum": "add.f32", "max": "max.f32"}[over]
    meet = ["barrier.cluster.arrive.release;", "barrier.cluster.wait.acquire;"]
    lines = ["{", f".shared .align 16 .b32 room[{each * threads}];", ".reg .b32 tid, rank, mine, own;", ".reg .pred p;"]
    lines += [f".reg .b32 peer<{blocks}>;", f".reg .f32 part<{blocks}>;", "mov.u32 tid, %tid.x;", "mov.u32 own, room;"]
    lines += ["mov.u32 rank, %cluster_ctarank;", "mad.lo.u32 mine, tid, 4, own;", f"mad.lo.u32 own, rank, {4 * share}, mine;"]
    lines += [f"st.shared.f32 [mine + {4 * i * threads}], ${each + i};" for i in range(each)] + meet
    lines += [f"mapa.shared::cluster.u32 peer{b}, own, {b};" for b in range(blocks)]
    for at in range(0, share, threads):
        guard = "" if at + threads <= share else "@p "
        lines += [f"setp.lt.u32 p, tid, {share - at};"] if guard else []
        lines += [f"{guard}ld.shared::cluster.f32 part{b}, [peer{b} + {4 * at}];" for b in range(blocks)]
        lines += [f"{fold} part0, part0, part{b};" for b in range(1, blocks)]
        lines += [f"{guard}st.shared::cluster.f32 [peer{b} + {4 * at}], part0;" for b in range(to)]
    lines += [*meet, *[f"ld.shared.f32 ${i}, [mine + {4 * i * threads}];" for i in range(each)], "}"]
    return "\\n".join(lines)


@triton.constexpr_function
def elements_of_a_thread(lanes, threads):
    return max(lanes // threads, 2)


@triton.constexpr_function
def registers(each):
    return ",".join(["=f"] * each + ["f"] * each)


@triton.jit
def exchanged(x, over: tl.constexpr, blocks: tl.constexpr, to: tl.constexpr):
    """x over all blocks of the cluster, in so many of them; the others have anything."""
    threads: tl.constexpr = tl.extra.cuda.num_threads()
    each: tl.constexpr = elements_of_a_thread(x.numel, threads)
    code: tl.constexpr = exchange(over, blocks, to, threads, each)
    return tl.inline_asm_elementwise(code, registers(each), [x], dtype=tl.float32, is_pure=False, pack=each)


def launch_clusters(function, grid, blocks, *args, **options):
    """A grid of clusters along its first dim. Triton launches clusters of what it splits over
    blocks itself; here the launcher alone is told of them."""
    made = function.warmup(*args, grid=grid, **options)
    warps, now, shared = made.packed_metadata
    if now != blocks:
        import ctypes

        # Triton asks for more shared memory from 48 KiB on, without the exchanged bytes.
        made._init_handles()
        ctypes.CDLL("libcuda.so.1").cuFuncSetAttribute(ctypes.c_void_p(made.function), 8, shared)
        made.packed_metadata = (warps, blocks, shared)
    function[grid](*args, **options)
'''
"""The part of a program with clusters."""


def stored_by_first(node: Node) -> set[Node]:
    """The terms of a kernel's body that only the first block of a cluster needs: it alone stores,
    and no block combines terms that depend on them."""
    body = node.attr("body")
    if any(axes[-1] >= 0 for axes in node.attr("omap")):
        return set()
    combining = [each for each in body if traits(each).lowering is Lowering.COMBINE]
    wanted = topological([arg for each in combining for arg in each.args])
    return {*body}.difference(wanted)


def combined(tiles: Tiles, node: Node, values: Mapping[Node, Tile], blocks: int, to: int) -> Tile:
    """The combined value of a term over all blocks of a cluster, given to the first `to` blocks."""
    over, degree = node.attr("over"), node.attr("degree")
    x, *second = [tiles.computed(values[arg]) for arg in node.args]
    if over == "variance":
        (mean,) = second
        apart = tiles.sub(mean, _mean(tiles, mean, blocks, blocks))
        return _mean(tiles, tiles.add(x, tiles.mul(apart, apart)), blocks, to)
    if over == "rescaled" and degree:
        lag = tiles.sub(second[0], _exchanged(tiles, second[0], "max", blocks, blocks))
        x = tiles.mul(x, tiles.map(np.exp, lag if degree == 1 else tiles.mul(lag, tiles.literal(degree, lag))))
    return _exchanged(tiles, x, "max" if over == "max" else "sum", blocks, to)


def _mean(tiles: Tiles, x: Tile, blocks: int, to: int) -> Tile:
    return tiles.mul(_exchanged(tiles, x, "sum", blocks, to), tiles.literal(1 / blocks, x))


def _exchanged(tiles: Tiles, x: Tile, over: str, blocks: int, to: int) -> Tile:
    x = tiles.computed(x)
    if x.number is not None or x.stored != "float32":
        raise Unsupported(f"a combination of {'a number' if x.number is not None else x.stored} over a cluster")
    code = x.code if x.present else tiles.lines.let(x.stage, f"{x.code}_row", tl.full([16], x.code, tl.float32))
    found = tiles.lines.let(x.stage, "combined", v.exchanged(code, f'"{over}"', blocks, to))
    if not x.present:
        found = tiles.lines.let(x.stage, "combined", tl.max(found, 0))
    return replace(x, code=found, zero=x.zero)
