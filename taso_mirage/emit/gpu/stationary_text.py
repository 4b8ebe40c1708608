"""The text of a convolution whose weights stay in shared memory: templates in Gluon, filled by
`stationary.py`.

Why nothing is read that is not there. A group copies into the slot that it read an iteration
before: all its threads have met since, where they waited for the next tile. Operands that tensor
cores take from registers stay there until they are done, which the group waits for before the
registers get the next tile. Weights are there before the groups begin, and nobody writes them
again.
"""

from __future__ import annotations

ROUNDED_TILES = '''from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import async_copy, fence_async_shared, warpgroup_mma, warpgroup_mma_wait


@gluon.jit
def rounded_tile(slots, slot, STAGES: gl.constexpr, D: gl.constexpr, LOADED: gl.constexpr, DOT: gl.constexpr):
    """The next tile that was loaded, positions by channels, rounded to TF32 as tensor cores take it."""
    async_copy.wait_group(STAGES - 2)
    gl.thread_barrier()
    x = slots.index(slot).load(LOADED)
    x = gl.inline_asm_elementwise("cvt.rna.tf32.f32 $0, $1;", "=r,r", [x], dtype=gl.float32, is_pure=False, pack=1)
    x = gl.permute(gl.reshape(x, [D, 4, 8, 2, 2]), [3, 1, 4, 2, 0])  # (warp, lane, register) to rows of a product
    return gl.convert_layout(gl.reshape(x, [128, D]), DOT, assert_trivial=True)


@gluon.jit
def by_position(x, N: gl.constexpr, LAYOUT: gl.constexpr):
    """Rows of a product as positions."""
    x = gl.permute(gl.reshape(x, [2, 4, 2, 8, N]), [1, 3, 0, 2, 4])
    return gl.convert_layout(gl.reshape(x, [128, N]), LAYOUT, assert_trivial=True)
'''
PLACES_AND_LOADS = '''@gluon.jit
def {name}_place(tile):
    """Of a tile: its image, plane and phases, and its first position."""
    first = tile % {tiles} * {step}
    at = tile // {tiles}
    phase_high = at % {phases_high}
    at = at // {phases_high}
    phase_deep = at % {phases_deep}
    at = at // {phases_deep}
    return gl.cast(at // {planes}, gl.int64), at % {planes}, phase_deep, phase_high, first


@gluon.jit
def {name}_taps(phase_deep, phase_high):
    """Elements of the kernel that a tile sees, along the first two axes."""
    return {taps_deep}, {taps_high}


@gluon.jit
def {name}_seen(first, LAYOUT: gl.constexpr):
    """What the positions of a tile see of a plane: rows, and where in it, for the first element."""
    chunk = gl.arange(0, 32, gl.SliceLayout(0, gl.SliceLayout(2, LAYOUT)))
    position = first + chunk // {warp_chunks} * {kept} + chunk % {warp_chunks} * 4
    top = position // {pitch}
    left = position % {pitch} - {gap}
    row = {row}
    return gl.where((left >= 0) & (left < {size}), row, {beyond}), row * {size} + left


@gluon.jit
def {name}_ahead(tile, LAYOUT: gl.constexpr):
    """Of a tile that is to be loaded: its image and plane, the elements of the kernel that it sees along the second axis, its steps, and
    what its positions see."""
    image, plane, phase_deep, phase_high, first = {name}_place(tile)
    low_taps, high_taps = {name}_taps(phase_deep, phase_high)
    rows, where = {name}_seen(first, LAYOUT)
    return image, plane, high_taps, low_taps * high_taps * {chunks}, rows, where


@gluon.jit
def {name}_load(x, slot, image, plane, rows, where, high_taps, step, LAYOUT: gl.constexpr):
    """Some channels of a tile, through one element of the kernel along the first two axes."""
    tap = step // {chunks}
    begin = step % {chunks} * {depth}
    low = tap // high_taps
    tap = tap % high_taps
    plane_x = {plane_x}
    further = {further}
    c = gl.arange(0, {depth}, gl.SliceLayout(1, gl.SliceLayout(2, LAYOUT)))
    seen = (rows + further >= 0) & (rows + further < {height}) & (plane_x >= 0) & (plane_x < {planes_x})
    mask = gl.expand_dims(seen, 0) & gl.expand_dims(begin + c < {channels}, 1)
    inner = gl.expand_dims(gl.expand_dims(gl.arange(0, 4, gl.SliceLayout(0, gl.SliceLayout(1, LAYOUT))), 0), 1)
    at = gl.expand_dims(gl.expand_dims(c * {volume}, 1) + gl.expand_dims(where, 0), 2) + inner
    mask = gl.expand_dims(mask, 2) & (inner >= 0)
    at = gl.reshape(at, [{depth}, 128])
    mask = gl.reshape(mask, [{depth}, 128])
    x = x + image * {image} + (begin * {volume} + plane_x * {area} + further * {size})
    at = gl.max_contiguous(gl.multiple_of(at, [1, 4]), [1, 4])
    async_copy.async_copy_global_to_shared(slot, x + at, gl.max_constancy(mask, [1, 4]))


@gluon.jit
def {name}_next(x, slot, following, total, stride, step, image, plane, high_taps, left, rows, where, LAYOUT: gl.constexpr):
    """Load a step of the following tile, if there is one; returns what is loaded after it."""
    if following < total:
        {name}_load(x, slot, image, plane, rows, where, high_taps, step, LAYOUT)
    async_copy.commit_group()
    step += 1
    if step == left:
        step = 0
        following += stride * {groups}
        image, plane, high_taps, left, rows, where = {name}_ahead(following, LAYOUT)
    return following, step, image, plane, high_taps, left, rows, where
'''
GROUP_OF_WARPS = """@gluon.jit
def {name}_group({arguments}, weights, ring, total, columns, first_tile, stride, GROUP: gl.constexpr, STAGES: gl.constexpr):
    MMA: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, {width}, 8])
    DOT: gl.constexpr = gl.DotOperandLayout(0, MMA, 1)
    COPIED: gl.constexpr = gl.BlockedLayout([1, 1, 4], [1, 32, 1], [4, 1, 1], [2, 1, 0])
    LOADED: gl.constexpr = gl.DistributedLinearLayout({loaded}, [], [{depth}, 128])
    SUMMED: gl.constexpr = gl.DistributedLinearLayout({summed}, [], [128, {width}])
    STORED: gl.constexpr = gl.DistributedLinearLayout({stored}, [], [{results}, {width}])
    following = first_tile * {groups} + GROUP
    image, plane, high_taps, left, rows, where = {name}_ahead(following, COPIED)
    step = 0
    for i in gl.static_range(STAGES - 1):
        following, step, image, plane, high_taps, left, rows, where = {name}_next(
            x, ring.index(GROUP * STAGES + i), following, total, stride, step, image, plane, high_taps, left, rows, where, COPIED)
    slot = 0
    ahead = STAGES - 1
    tile_x = rounded_tile(ring, GROUP * STAGES, STAGES, {depth}, LOADED, DOT)
    for tile in range(first_tile * {groups} + GROUP, total, stride * {groups}):
        own_image, own_plane, own_deep, own_high, own_first = {name}_place(tile)
        own_low, own_taps = {name}_taps(own_deep, own_high)
{zeros}
        for t in range(own_low * own_taps * {chunks}):
            place_w = {place_w}
{products}
            following, step, image, plane, high_taps, left, rows, where = {name}_next(
                x, ring.index(GROUP * STAGES + ahead), following, total, stride, step, image, plane, high_taps, left, rows, where, COPIED)
            ahead = gl.where(ahead == STAGES - 1, 0, ahead + 1)
            slot = gl.where(slot == STAGES - 1, 0, slot + 1)
            next_x = rounded_tile(ring, GROUP * STAGES + slot, STAGES, {depth}, LOADED, DOT)
            {sums}, tile_x = warpgroup_mma_wait(0, deps=({tokens}, tile_x))  # it is read until here
            tile_x = next_x
{ends}
    async_copy.wait_group(0)
"""
ENTRY = """@gluon.jit{free}
def {name}({arguments}{sizes}, STAGES: gl.constexpr, PRECISION: gl.constexpr = 'tf32', OVERLAP: gl.constexpr = False,
    LATE: gl.constexpr = False):
    columns = gl.program_id(0) % {parts} * {width}
    first = gl.program_id(0) // {parts}
    stride = gl.num_programs(0) // {parts}
    total = ({images}) * {tiles_of_image}
    weights = gl.allocate_shared_memory(gl.float32, [{elements}, {width}, {depth}], gl.NVMMASharedLayout({row_bytes}, 32, 2))
    ring = gl.allocate_shared_memory(gl.float32, [{groups} * STAGES, {depth}, 128], gl.SwizzledSharedLayout(8, 1, 4, [1, 0]))
    if OVERLAP:  # loads follow the wait for the kernel before
        tl.extra.cuda.gdc_wait()
    if OVERLAP and not LATE:  # the one after may start now, and waits as well; else at the end
        tl.extra.cuda.gdc_launch_dependents()
    COPIED: gl.constexpr = gl.BlockedLayout([1, {weight_chunk}], [{weight_lanes}], [4, 1], [1, 0])
    o = columns + gl.arange(0, {width}, gl.SliceLayout(1, COPIED))
    d = gl.arange(0, {depth}, gl.SliceLayout(0, COPIED))
    for i in range({elements}):
        c = i % {chunks} * {depth} + d
        at = w + (i // {elements_of_row} * {all_columns} * {whole} + i % {elements_of_row} // {chunks} * {channels})
        mask = gl.expand_dims(o < {all_columns}, 1) & gl.expand_dims(c < {channels}, 0)
        at = at + gl.expand_dims(o * {whole}, 1) + gl.expand_dims(c, 0)
        async_copy.async_copy_global_to_shared(weights.index(i), at, mask)
    async_copy.commit_group()
    async_copy.wait_group(0)
    fence_async_shared()
    gl.thread_barrier()
    gl.warp_specialize([
        ({name}_group, ({arguments}, weights, ring, total, columns, first, stride, 0, STAGES)),
        ({name}_group, ({arguments}, weights, ring, total, columns, first, stride, 1, STAGES)),
    ], [4], [{registers}])
"""
