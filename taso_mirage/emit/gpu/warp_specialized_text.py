"""The functions of a kernel of attention whose warps have roles, in Gluon; `warp_specialized.py`
computes the parts in braces.

Why nothing waits for ever, and nothing is read before it is written
(`tests/harness/barrier_states.py` tries all orders): tile t is in slot t % STAGES, in phase (t //
STAGES) & 1 of its barriers. A slot is loaded again after both groups have signalled that they read
it, so no group is two phases ahead of another, which parities could not distinguish. The threads of
a group meet before its signal: one thread arrives for 128. The divisors of keys are read before a
group signals that the keys are free, because they are written again only after that. A turn is
passed as often as it is taken: group 1 passes one before its loop, and none in the last iteration.
All copies are waited for, so none is in flight when the block ends. Registers are distributed by
`setmaxnreg`, whose sum is the block's total.
"""

from __future__ import annotations

HELPERS = '''from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import fence_async_shared, tma, warpgroup_mma, warpgroup_mma_wait
from triton.experimental.gluon.language.nvidia.hopper import mbarrier as gl_mbarrier
from triton.experimental.gluon.nvidia.hopper import TensorDescriptor

TILED = gl.constexpr(gl.NVMMASharedLayout(128, 16, 2))


def tiles(x, shape, tile):
    """A tensor as a matrix that kernels copy in tiles."""
    return TensorDescriptor(x, list(shape), [shape[1], 1], list(tile), TILED.value)


@gluon.jit
def load_tile(matrix, slots, full, slot, row, column):
    gl_mbarrier.expect(full.index(slot), matrix.block_type.nbytes)
    tma.async_copy_global_to_shared(matrix, [row, column], full.index(slot), slots.index(slot))


@gluon.jit
def take_turn(group: gl.constexpr, complete):
    """Wait for a group's turn. The compiler moves no work before a wait for a barrier, also for one that is complete."""
    if group == 0:
        gl.inline_asm_elementwise("bar.sync 8, 256; mov.u32 $0, 0;", "=r", [], dtype=gl.int32, is_pure=False, pack=1)
    else:
        gl.inline_asm_elementwise("bar.sync 9, 256; mov.u32 $0, 0;", "=r", [], dtype=gl.int32, is_pure=False, pack=1)
    gl_mbarrier.wait(complete, 0)


@gluon.jit
def pass_turn(group: gl.constexpr):
    """It is the other group's turn."""
    if group == 0:
        gl.inline_asm_elementwise("bar.arrive 9, 256; mov.u32 $0, 0;", "=r", [], dtype=gl.int32, is_pure=False, pack=1)
    else:
        gl.inline_asm_elementwise("bar.arrive 8, 256; mov.u32 $0, 0;", "=r", [], dtype=gl.int32, is_pure=False, pack=1)


@gluon.jit
def here(x):
    """x, which is computed before what follows."""
    return gl.inline_asm_elementwise("", "=r,0", [x], dtype=x.dtype, is_pure=False, pack=2)
'''
ATTENTION_FUNCTIONS = '''def KERNEL_loads(keys, values, *MEMORY, g0, g1, g2, STAGES: gl.constexpr):
    """All tiles but the first ones, and what keys are divided by."""
    if {by_key}:
        gl.static_assert(STAGES > 1)  # else the first wait below is for a tile that is asked for behind it
        for i in range({loop}):
            gl_mbarrier.wait(k_full.index(i % STAGES), (i // STAGES) & 1)
            scales.index(i % STAGES).store(KERNEL_of_keys({key_tile}))
            gl_mbarrier.arrive(s_full.index(i % STAGES), count=1)
            n = i - 1
            t = n + STAGES
            if n >= 0 and t < {loop}:
                gl_mbarrier.wait(k_free.index(t % STAGES), (n // STAGES) & 1)
                load_tile(keys, k, k_full, t % STAGES, {*key_place})
                gl_mbarrier.wait(v_free.index(t % STAGES), (n // STAGES) & 1)
                load_tile(values, v, v_full, t % STAGES, {*value_place})
    else:
        for t in range(STAGES, {loop}):
            n = t - STAGES
            gl_mbarrier.wait(k_free.index(t % STAGES), (n // STAGES) & 1)
            load_tile(keys, k, k_full, t % STAGES, {*key_place})
            gl_mbarrier.wait(v_free.index(t % STAGES), (n // STAGES) & 1)
            load_tile(values, v, v_full, t % STAGES, {*value_place})


def KERNEL_group(q_all, *SHARED, g0, g1, g2, GROUP: gl.constexpr, STAGES: gl.constexpr):
    """64 rows of queries over all keys of the block."""
    mma: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, {keys}, 16])
    out: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, {width}, 16])
    mma_rows: gl.constexpr = gl.SliceLayout(1, mma)
    out_rows: gl.constexpr = gl.SliceLayout(1, out)
    first: gl.constexpr = GROUP * {rows}
    q = q_all.slice(first, {rows})
    acc = gl.zeros([{rows}, {width}], gl.float32, out)
    total = gl.zeros([{rows}], gl.float32, mma_rows)
    m = gl.full([{rows}], {lowest}, gl.float32, mma_rows)
    empty = gl.zeros([{rows}, {keys}], gl.float32, mma)
    gl_mbarrier.wait(q_full, 0)
    if {by_query}:
        by_query = gl.convert_layout(KERNEL_of_queries({query_tile}), mma_rows)
        factor = by_query * {log2_e}
    if GROUP == 1:
        pass_turn(GROUP)
    for t in range({loop}):
        slot = t % STAGES
        phase = (t // STAGES) & 1
        gl_mbarrier.wait(k_full.index(slot), phase)
        s = warpgroup_mma(q, {key_operand}, empty, use_acc=False, is_async=True)
        if {by_key}:
            gl_mbarrier.wait(s_full.index(slot), phase)
            by_key = scales.index(slot).load(gl.SliceLayout(0, mma))
        s = warpgroup_mma_wait(0, deps=(s,))
        gl_mbarrier.arrive(k_free.index(slot), count=1)
        take_turn(GROUP, q_full)
        if {by_key}:
            s = s * gl.expand_dims(by_key, 0)
        m_new = gl.maximum(m, gl.max(s, 1))
        top = gl.maximum(m_new * {factor}, {lowest})
        rescale = gl.exp2(gl.maximum(m * {factor}, {lowest}) - top)
        p = gl.exp2(s * {row_factor} - gl.expand_dims(top, 1))
        total = total * rescale + gl.sum(p, 1)
        m = m_new
        weights = here(p.to(v.dtype))
        acc = acc * gl.expand_dims(gl.convert_layout(rescale, out_rows), 1)
        gl_mbarrier.wait(v_full.index(slot), phase)
        if GROUP == 0:
            pass_turn(GROUP)
        elif t < {loop} - 1:
            pass_turn(GROUP)
        weights = gl.convert_layout(weights, gl.DotOperandLayout(0, out, 2))
        token = warpgroup_mma(weights, v.index(slot), acc, is_async=True)
        acc, weights = warpgroup_mma_wait(0, deps=(token, weights))
        gl_mbarrier.arrive(v_free.index(slot), count=1)
    if {by_query}:
        m = m * by_query
    rows = first + gl.arange(0, {rows}, mma_rows)
    out_total = gl.convert_layout(total, out_rows)
    out_m = gl.convert_layout(m, out_rows)
    matrix_rows = gl.expand_dims(first + gl.arange(0, {rows}, out_rows), 1)
    matrix_columns = gl.expand_dims(gl.arange(0, {width}, gl.SliceLayout(0, out)), 0)
    {stores}


def KERNEL(*ARGUMENTS, STAGES: gl.constexpr):
    g0 = gl.program_id(0)
    g1 = gl.program_id(1)
    g2 = gl.program_id(2)
    q = gl.allocate_shared_memory(queries.dtype, {query_shape}, TILED)
    k = gl.allocate_shared_memory(keys.dtype, [STAGES] + {key_shape}, TILED)
    v = gl.allocate_shared_memory(values.dtype, [STAGES] + {value_shape}, TILED)
    scales = gl.allocate_shared_memory(gl.float32, [STAGES, {keys}], gl.SwizzledSharedLayout(1, 1, 1, [0]))
    q_full = gl.allocate_shared_memory(gl.int64, [1], gl_mbarrier.MBarrierLayout())
    k_full = gl.allocate_shared_memory(gl.int64, [STAGES, 1], gl_mbarrier.MBarrierLayout())
    v_full = gl.allocate_shared_memory(gl.int64, [STAGES, 1], gl_mbarrier.MBarrierLayout())
    s_full = gl.allocate_shared_memory(gl.int64, [STAGES, 1], gl_mbarrier.MBarrierLayout())
    k_free = gl.allocate_shared_memory(gl.int64, [STAGES, 1], gl_mbarrier.MBarrierLayout())
    v_free = gl.allocate_shared_memory(gl.int64, [STAGES, 1], gl_mbarrier.MBarrierLayout())
    gl_mbarrier.init(q_full, count=1)
    for i in gl.static_range(STAGES):
        gl_mbarrier.init(k_full.index(i), count=1)
        gl_mbarrier.init(v_full.index(i), count=1)
        gl_mbarrier.init(s_full.index(i), count=1)
        gl_mbarrier.init(k_free.index(i), count={groups})
        gl_mbarrier.init(v_free.index(i), count={groups})
    fence_async_shared()
    {waiting}
    gl_mbarrier.expect(q_full, queries.block_type.nbytes)
    tma.async_copy_global_to_shared(queries, [{*query_place}], q_full, q)
    for t in gl.static_range(min(STAGES, {loop})):
        load_tile(keys, k, k_full, t, {*key_place})
        load_tile(values, v, v_full, t, {*value_place})
    gl.warp_specialize([
        (KERNEL_loads, (keys, values, {*MEMORY}, g0, g1, g2, STAGES)),
        (KERNEL_group, (q, {*SHARED}, g0, g1, g2, 0, STAGES)),
        (KERNEL_group, (q, {*SHARED}, g0, g1, g2, 1, STAGES)),
    ], [4, 4], [{registers}, {registers}])
'''
