"""muGraph kernels and the operators that only their bodies use (Mirage, OSDI'25, section 3; online
softmax: Neptune, PLDI'26).

A `kernel` is defined by slicing its operands, running the body for every block and iteration,
accumulating, combining the values of a cluster's blocks, and stitching the blocks' outputs. All
blocks, and all iterations, have equal parts, so a meaning of types looks at one of each
(`Meaning.each`).
"""

from functools import partial, reduce
from itertools import accumulate as running

from op_specs.arithmetic import div, exp, mul, sub
from op_specs.matmul import matmul
from op_specs.reductions import reduce_max, reduce_mean, reduce_sum
from taso_mirage.errors import IllTyped
from taso_mirage.ir.dims import Dim, broadcast_shapes, show_shape
from taso_mirage.ir.mugraph import LoopPhase, Lowering, check, loop_phases, overlaps, stitched
from taso_mirage.ir.terms import ABSENT, Graph, Tensor, variable
from taso_mirage.meanings.shapes import SHAPES
from taso_mirage.meanings.variance import merged_variance
from taso_mirage.operators.interpret import interpret_term
from taso_mirage.operators.ops import Dims, Ints, Maps, op

SECOND = {"sum": None, "max": None, "rescaled": "a running maximum", "variance": "a mean"}
"""The folds of an accumulator, and the second operand of each."""


@op(lowering=Lowering.ACCUMULATE)
def accumulate(xp, x, m=None, *, over: str = "sum", degree: int = 0):
    """x -> the fold of x over all iterations: the "sum", the "max", "rescaled" by a `running_max`
    m, which is sum_t x_t e^(degree (m_t - m_T)), or the "variance" of all elements, where x_t and
    m_t are the variance and the mean of those of one iteration (Chan, Golub and LeVeque 1979: one
    pass, and no difference of large squares). Outside of a kernel there is one iteration, and it is
    x."""
    return _folding("accumulate", xp, x, m, over, SECOND)


@op(lowering=Lowering.COMBINE)
def combine(xp, x, m=None, *, over: str = "sum", degree: int = 0):
    """x -> the fold of x over all blocks of a cluster, in each of them: the "sum", the "max",
    "rescaled" by a maximum m of each block, which is sum_b x_b e^(degree (m_b - max m)), or the
    "variance" of all elements, as `accumulate` has it. Without a cluster there is one block, and it
    is x."""
    return _folding("combine", xp, x, m, over, {**SECOND, "rescaled": "a maximum"})


@op(lowering=Lowering.RUNNING)
def running_max(xp, x):
    """x -> the largest x of the iterations up to this one; outside of a kernel, x"""
    return x


@op(lowering=Lowering.NARROW)
def narrow(xp, x):
    """x -> x; as a result of a kernel that another one reads, kept in its own float type, where all
    others are in fp32"""
    return x


@op(lowering=Lowering.KERNEL)
def kernel(xp, *operands, body: Graph, grid: Dims, loop: Dim, imap: Maps, fmap: Ints, omap: Maps, cluster: int = 1):
    """tensors -> one tensor for each output of the body, a tuple unless there is one.

    `grid`: up to three block counts; `loop`: the for-loop range. imap[i][g] and fmap[i]: the dim of
    operand i that grid dim g and then the loop cut into equal parts, -1 for none; along a dim that
    a grid dim alone cuts the body may take larger tiles, of which the last block's begins earlier
    (`mugraph.Overlap`). omap[o][g]: the dim of output o along which the blocks of grid dim g stand,
    -1 where the first of them alone gives it. Inputs of the body have the tiles' types. A kernel in
    a body is the thread level. `cluster`: 1, or all blocks of the last grid dim, which then
    exchange the values that the body combines.

    Free sizes: `n_by_8` is the size of a tile of `n` elements of which all but the last have 8, in
    (n + 7) // 8 blocks or iterations (`mugraph.part`). Such a kernel has types, and code; its value
    is that of the same kernel at sizes (`mugraph.free.at_sizes`).
    """
    if xp is SHAPES:
        check(operands, body, grid, loop, imap, fmap, omap, cluster)
    overlapping = overlaps([xp.shape(x) for x in operands], body, grid, imap)
    if xp is SHAPES:
        made = [stitched(o.tensor, grid, axes, overlapping) for o, axes in zip(body.outputs, omap, strict=True)]
        return made[0] if len(made) == 1 else tuple(made)
    run_blocks = partial(_outputs, xp, body, loop_phases(body, fmap, loop), loop, fmap)
    found = _blocks(xp, operands, run_blocks, grid, imap, omap, overlapping, cluster)
    return found[0] if len(found) == 1 else tuple(found)


def _folding(name, xp, x, m, over, second):
    """x, once the second operand is there where it has to be, and fits."""
    if over not in second:
        raise IllTyped(f"{name} over {over!r}; it is {', '.join(second)}")
    if (m is not None) != (second[over] is not None):
        raise IllTyped(f"{name} over {over} {f'without {second[over]}' if m is None else 'with a second operand'}")
    if m is not None and _broadcast(xp, x, m) != xp.shape(x):
        raise IllTyped(f"{second[over]} of {show_shape(xp.shape(m))} does not fit {show_shape(xp.shape(x))}")
    return x


def _broadcast(xp, x, m):
    try:
        return broadcast_shapes(xp.shape(x), xp.shape(m))
    except ValueError:
        return None


def _blocks(xp, operands, run_blocks, grid, imap, omap, overlapping, cluster, g=0):
    """The outputs of all blocks of the grid dims from `g` on; those of a cluster run together."""
    if g == len(grid):
        return run_blocks([operands])[0]

    def tiles(i):
        return [_part(xp, x, axes[g], i, grid[g], overlapping[g]) for x, axes in zip(operands, imap, strict=True)]

    def one(i):
        return _blocks(xp, tiles(i), run_blocks, grid, imap, omap, overlapping, cluster, g + 1)

    clustered = cluster != 1 and g == len(grid) - 1
    blocks = run_blocks(xp.each(cluster, tiles)) if clustered else xp.each(grid[g], one)
    return [
        blocks[0][o] if axes[g] < 0 else _stitched(xp, [b[o] for b in blocks], axes[g], overlapping[g])
        for o, axes in enumerate(omap)
    ]


def _part(xp, x, axis, i, count, overlap=None):
    if axis < 0 or count == 1:
        return x
    whole, size = overlap or (xp.shape(x)[axis], xp.shape(x)[axis] // count)
    start = i * size if overlap is None else min(i * size, whole - size)
    return xp.slice(x, axis, start, start + size)


def _stitched(xp, parts, axis, overlap):
    """The blocks side by side; of the last only the part after the one before it."""
    if overlap is not None:
        whole, size = overlap
        parts = [*parts[:-1], xp.slice(parts[-1], axis, len(parts) * size - whole, size)]
    return xp.concat(parts, axis)


def _outputs(xp, body, stage, loop, fmap, blocks):
    """The outputs of each block of a cluster, or of one block, from its tiles. Each block has its
    own value of a term; a term of the loop has a list of values, one for each iteration."""
    count = len(blocks)
    values = {ABSENT: [None] * count}
    for i, (leaf, axis) in enumerate(zip(body.inputs, fmap, strict=True)):
        values[leaf] = [_iterations(xp, tiles[i], axis, loop) if axis >= 0 else tiles[i] for tiles in blocks]
    for node in stage:
        if node not in values:
            args, looped = [values[a] for a in node.args], [stage[a] is LoopPhase.LOOP for a in node.args]
            values[node] = (
                [_combined(xp, node.attr("over"), node.attr("degree"), *args)] * count
                if node.op == "combine"
                else xp.each(count, partial(_value, xp, node, loop, args, looped))
            )
    return [[values[output][b] for output in body.outputs] for b in range(count)]


def _iterations(xp, x, axis, loop):
    return xp.each(loop, lambda t: _part(xp, x, axis, t, loop))


def _value(xp, node, loop, args, looped, block):
    """The value of a term in one block."""
    args = [x[block] for x in args]
    if not any(looped):
        return interpret_term(node, xp, args)
    if node.op == "running_max":
        return list(running(args[0], xp.maximum))
    lists = [x if each else [x] * loop for x, each in zip(args, looped, strict=True)]
    if node.op == "accumulate":
        return _folded(xp, node.attr("over"), node.attr("degree"), lists[0], *[(m, m[-1]) for m in lists[1:]])
    return xp.each(loop, lambda t: interpret_term(node, xp, [x[t] for x in lists]))


def _combined(xp, over, degree, xs, ms=None):
    return _folded(xp, over, degree, xs, None if ms is None else (ms, reduce(xp.maximum, ms)))


def _folded(xp, over, degree, xs, relative=None):
    """The fold of some parts; `relative` are the second operands, and for maxima the last one."""
    ms, last = relative or (None, None)
    if over == "variance":
        return _variance(xp, xs, ms)
    if over == "rescaled" and degree:
        xs = xp.each(len(xs), lambda t: _rescaled(xp, xs[t], ms[t], last, degree))
    return reduce(xp.maximum if over == "max" else xp.add, xs)


def _variance(xp, variances, means):
    """The variance of all elements, from the variances of equal parts, in the order of a loop."""
    found = variances[0], means[0]
    for t in range(1, len(means)):
        count = xp.cast(xp.scalar(t + 1, "float32"), xp.dtype(means[0]))
        found = merged_variance(xp, *found, variances[t], means[t], count)
    return found[0]


def _rescaled(xp, x, m, last, degree):
    """x e^(degree (m - last)): the summand of iteration `t` once the maximum is known."""
    lag = xp.sub(m, last)
    return xp.mul(x, exp(xp, lag if degree == 1 else xp.mul(lag, xp.literal(degree, lag))))


def _product_and_squares():
    """The body of rms(x) w: two sums over the loop."""
    x, w = variable("x", Tensor("float32", (2, 2))), variable("w", Tensor("float32", (2, 3)))
    squares = accumulate.term(reduce_sum.term(mul.term(x, x), axes=(1,)))
    return Graph((x, w), (div.term(accumulate.term(matmul.term(x, w)), squares),))


def _spread():
    """The body of a variance, in one pass."""
    x = variable("x", Tensor("float32", (1, 4)))
    mean = reduce_mean.term(x, axes=(1,))
    apart = sub.term(x, mean)
    return Graph((x,), (accumulate.term(reduce_mean.term(mul.term(apart, apart), axes=(1,)), mean, over="variance"),))


def _square():
    """The body of x * x on tiles of three rows."""
    x = variable("x", Tensor("float32", (3, 4)))
    return Graph((x,), (mul.term(x, x),))


def _softmax():
    """The body of a softmax's largest element and sum over the loop."""
    x = variable("x", Tensor("float32", (1, 2)))
    top = reduce_max.term(x, axes=(1,))
    m = running_max.term(top)
    total = accumulate.term(reduce_sum.term(exp.term(sub.term(x, m)), axes=(1,)), m, over="rescaled", degree=1)
    return Graph((x,), (accumulate.term(top, over="max"), total))


def _long_row():
    """The body of x over the sum of its squares, on parts of rows."""
    x = variable("x", Tensor("float32", (1, 4)))
    return Graph((x,), (div.term(x, combine.term(reduce_sum.term(mul.term(x, x), axes=(1,)))),))


accumulate.example("float32[2,3]")
accumulate.example("float32[2,3]", over="max")
accumulate.example("float32[2,3]", "float32[2,1]", over="rescaled", degree=1)
accumulate.example("float32[2,3]", "float32[2,3]", over="variance")
combine.example("float32[2,3]")
combine.example("float32[2,3]", "float32[2,1]", over="rescaled", degree=1)
running_max.example("float32[2,3]")
narrow.example("float32[2,3]")
kernel.example(
    "float32[2,4]",
    "float32[4,6]",
    body=_product_and_squares(),
    grid=(2,),
    loop=2,
    imap=((-1,), (1,)),
    fmap=(1, 0),
    omap=((1,),),
)
kernel.example("float32[2,8]", body=_spread(), grid=(2,), loop=2, imap=((0,),), fmap=(1,), omap=((0,),))
kernel.example("float32[3,8]", body=_softmax(), grid=(3, 2), loop=2, imap=((0, 1),), fmap=(1,), omap=((0, 1), (0, 1)))
kernel.example("float32[5,4]", body=_square(), grid=(2,), loop=1, imap=((0,),), fmap=(-1,), omap=((0,),))
kernel.example(
    "float32[3,8]", body=_long_row(), grid=(3, 2), loop=1, imap=((0, 1),), fmap=(-1,), omap=((0, 1),), cluster=2
)
