"""The functions of a convolution whose weights stay in shared memory, in Gluon; `stationary.py`
computes the parts in braces.

Why nothing is read before it is written: A group copies into the slot that it read an iteration
before; all its threads have met since, when they waited for the next tile. Operands that tensor
cores read from registers stay there until the products are done, and the group waits for these
before the registers get the next tile. Weights are complete before the groups begin, and are not
written again.
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
STATIONARY_FUNCTIONS = '''def KERNEL_place(tile):
    """Of a tile: its image, plane and phases, and its first position."""
    first = tile % {s.tiles} * {4 * s.kept}
    at = tile // {s.tiles}
    phase_high = at % {high.phases}
    at = at // {high.phases}
    phase_deep = at % {deep.phases}
    at = at // {deep.phases}
    return gl.cast(at // {deep.positions}, gl.int64), at % {deep.positions}, phase_deep, phase_high, first


def KERNEL_taps(phase_deep, phase_high):
    """Elements of the kernel that a tile sees, along the first two axes."""
    return {deep.taps_of(v.phase_deep)}, {high.taps_of(v.phase_high)}


def KERNEL_seen(first, LAYOUT: gl.constexpr):
    """What the positions of a tile see of a plane: rows, and where in it, for the first element."""
    chunk = gl.arange(0, 32, gl.SliceLayout(0, gl.SliceLayout(2, LAYOUT)))
    position = first + chunk // 8 * {s.kept} + chunk % 8 * 4
    top = position // {s.pitch}
    left = position % {s.pitch} - {s.gap}
    row = {top}
    return gl.where((left >= 0) & (left < {row.size}), row, {beyond}), row * {row.size} + left


def KERNEL_ahead(tile, LAYOUT: gl.constexpr):
    """Of a tile that is to be loaded: its image and plane, the elements of the kernel that it sees along the second axis, its steps, and
    what its positions see."""
    image, plane, phase_deep, phase_high, first = KERNEL_place(tile)
    low_taps, high_taps = KERNEL_taps(phase_deep, phase_high)
    rows, where = KERNEL_seen(first, LAYOUT)
    return image, plane, high_taps, low_taps * high_taps * {s.chunks}, rows, where


def KERNEL_load(x, slot, image, plane, rows, where, high_taps, step, LAYOUT: gl.constexpr):
    """Some channels of a tile, through one element of the kernel along the first two axes."""
    tap = step // {s.chunks}
    begin = step % {s.chunks} * {s.depth}
    low = tap // high_taps
    tap = tap % high_taps
    plane_x = {deep.seen(v.plane, v.low)}
    further = {further}
    c = gl.arange(0, {s.depth}, gl.SliceLayout(1, gl.SliceLayout(2, LAYOUT)))
    seen = (rows + further >= 0) & (rows + further < {high.size}) & (plane_x >= 0) & (plane_x < {deep.size})
    mask = gl.expand_dims(seen, 0) & gl.expand_dims(begin + c < {s.inputs}, 1)
    inner = gl.expand_dims(gl.expand_dims(gl.arange(0, 4, gl.SliceLayout(0, gl.SliceLayout(1, LAYOUT))), 0), 1)
    at = gl.expand_dims(gl.expand_dims(c * {s.volume}, 1) + gl.expand_dims(where, 0), 2) + inner
    mask = gl.expand_dims(mask, 2) & (inner >= 0)
    at = gl.reshape(at, [{s.depth}, 128])
    mask = gl.reshape(mask, [{s.depth}, 128])
    x = x + image * {s.inputs * s.volume} + (begin * {s.volume} + plane_x * {high.size * row.size} + further * {row.size})
    at = gl.max_contiguous(gl.multiple_of(at, [1, 4]), [1, 4])
    async_copy.async_copy_global_to_shared(slot, x + at, gl.max_constancy(mask, [1, 4]))


def KERNEL_next(x, slot, following, total, stride, step, image, plane, high_taps, left, rows, where, LAYOUT: gl.constexpr):
    """Load a step of the following tile, if there is one; returns what is loaded after it."""
    if following < total:
        KERNEL_load(x, slot, image, plane, rows, where, high_taps, step, LAYOUT)
    async_copy.commit_group()
    step += 1
    if step == left:
        step = 0
        following += stride * 2
        image, plane, high_taps, left, rows, where = KERNEL_ahead(following, LAYOUT)
    return following, step, image, plane, high_taps, left, rows, where


def KERNEL_group(*OPERANDS, weights, ring, total, columns, first_tile, stride, GROUP: gl.constexpr, STAGES: gl.constexpr):
    MMA: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, {s.width}, 8])
    DOT: gl.constexpr = gl.DotOperandLayout(0, MMA, 1)
    COPIED: gl.constexpr = gl.BlockedLayout([1, 1, 4], [1, 32, 1], [4, 1, 1], [2, 1, 0])
    LOADED: gl.constexpr = gl.DistributedLinearLayout({*form.loaded()}, [], [{s.depth}, 128])
    SUMMED: gl.constexpr = gl.DistributedLinearLayout({*form.summed()}, [], [128, {s.width}])
    STORED: gl.constexpr = gl.DistributedLinearLayout({*form.stored()}, [], [{128 * row.phases}, {s.width}])
    following = first_tile * 2 + GROUP
    image, plane, high_taps, left, rows, where = KERNEL_ahead(following, COPIED)
    step = 0
    for i in gl.static_range(STAGES - 1):
        following, step, image, plane, high_taps, left, rows, where = KERNEL_next(
            x, ring.index(GROUP * STAGES + i), following, total, stride, step, image, plane, high_taps, left, rows, where, COPIED)
    slot = 0
    ahead = STAGES - 1
    tile_x = rounded_tile(ring, GROUP * STAGES, STAGES, {s.depth}, LOADED, DOT)
    for tile in range(first_tile * 2 + GROUP, total, stride * 2):
        own_image, own_plane, own_deep, own_high, own_first = KERNEL_place(tile)
        own_low, own_taps = KERNEL_taps(own_deep, own_high)
        {form.zeros()}
        for t in range(own_low * own_taps * {s.chunks}):
            place_w = {form.element()}
            {form.products()}
            following, step, image, plane, high_taps, left, rows, where = KERNEL_next(
                x, ring.index(GROUP * STAGES + ahead), following, total, stride, step, image, plane, high_taps, left, rows, where, COPIED)
            ahead = gl.where(ahead == STAGES - 1, 0, ahead + 1)
            slot = gl.where(slot == STAGES - 1, 0, slot + 1)
            next_x = rounded_tile(ring, GROUP * STAGES + slot, STAGES, {s.depth}, LOADED, DOT)
            *SUMS, tile_x = warpgroup_mma_wait(0, deps=({*form.tokens}, tile_x))  # it is read until here
            tile_x = next_x
        {form.results()}
        result_tile = gl.convert_layout({form.joined()}, STORED)
        index = gl.arange(0, {128 * row.phases}, gl.SliceLayout(1, STORED))
        column = columns + gl.arange(0, {s.width}, gl.SliceLayout(0, STORED))
        place = index // {row.phases}
        position = own_first + place // 32 * {s.kept} + place % 32
        top = position // {s.pitch}
        pixel = position % {s.pitch} - {s.begin}
        plane_y = {deep.made(v.own_plane, v.own_deep)}
        top_y = {high.made(v.top, v.own_high)}
        pixel_y = {row.made(v.pixel, v.index % row.phases)}
        kept = {form.kept()}
        place_y = (plane_y * {high.result} + top_y) * {row.result} + pixel_y
        place_y = gl.expand_dims(place_y, 1) + gl.expand_dims(column * {s.volume_y}, 0)
        own_image = own_image * {s.columns * s.volume_y}
        {form.late_epilogue()}
        gl.store(result + own_image + place_y, result_tile, mask=kept)
    async_copy.wait_group(0)


def KERNEL():
    columns = gl.program_id(0) % {s.parts} * {s.width}
    first = gl.program_id(0) // {s.parts}
    stride = gl.num_programs(0) // {s.parts}
    total = {images} * {s.tiles_of_image}
    weights = gl.allocate_shared_memory(gl.float32, [{s.elements}, {s.width}, {s.depth}], gl.NVMMASharedLayout({4 * s.depth}, 32, 2))
    ring = gl.allocate_shared_memory(gl.float32, [2 * STAGES, {s.depth}, 128], gl.SwizzledSharedLayout(8, 1, 4, [1, 0]))
    {waiting}
    COPIED: gl.constexpr = gl.BlockedLayout([1, {s.vector}], {s.lanes}, [4, 1], [1, 0])
    o = columns + gl.arange(0, {s.width}, gl.SliceLayout(1, COPIED))
    d = gl.arange(0, {s.depth}, gl.SliceLayout(0, COPIED))
    for i in range({s.elements}):
        c = i % {s.chunks} * {s.depth} + d
        at = w + (i // {s.elements // s.sums} * {s.columns} * {s.taps * s.inputs} + i % {s.elements // s.sums} // {s.chunks} * {s.inputs})
        mask = gl.expand_dims(o < {s.columns}, 1) & gl.expand_dims(c < {s.inputs}, 0)
        at = at + gl.expand_dims(o * {s.taps * s.inputs}, 1) + gl.expand_dims(c, 0)
        async_copy.async_copy_global_to_shared(weights.index(i), at, mask)
    async_copy.commit_group()
    async_copy.wait_group(0)
    fence_async_shared()
    gl.thread_barrier()
    gl.warp_specialize([
        (KERNEL_group, ({*OPERANDS}, weights, ring, total, columns, first, stride, 0, STAGES)),
        (KERNEL_group, ({*OPERANDS}, weights, ring, total, columns, first, stride, 1, STAGES)),
    ], [4], [{registers}])
'''
MOVED = """def KERNEL_moved_SHIFT(x):
    return gl.inline_asm_elementwise(
        {moves},
        "=&r,=&r,=&r,=&r,r,r,r,r", [x], dtype=gl.float32, is_pure=False, pack=4)
"""
