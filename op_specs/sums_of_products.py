"""Sums and means over the results of products, as products with sums: linear operators commute with
them."""

from op_specs.reductions import reduce_mean, reduce_sum

SUMMED = "gemm(x, SUM(w, axes=(1 - q,), keepdims=1), SUM(*c, axes=(rank(c) - 1,), keepdims=1), transB=q, **a)"
WHOLE = "rank(c) > 0 and dim(c, -1) == dim(w, 1 - q)"

for _sum, _more, _range in ((reduce_sum, "", 'and dtype(x) != "float16"'), (reduce_mean, "and is_float(x)", "")):
    # Sums over rows may leave the range of half precision. The runtime multiplies no empty batch
    # with a vector: hence the axis of 1, which is squeezed.
    _sum.laws(
        f"""
        # over the columns, over others, and over both
        SUM(matmul(x, w), axes=i, keepdims=1) \
            == matmul(x, SUM(w, axes=(1,), keepdims=1)) \
            where rank(x) > 1 and rank(w) == 2 and i == (rank(x) - 1,) {_more}
        given x: (m, k), w: (k, n) | i: (1,)
        SUM(matmul(x, w), axes=i, keepdims=0) \
            == squeeze(matmul(x, SUM(w, axes=(1,), keepdims=1)), axes=i) \
            where rank(x) > 1 and rank(w) == 2 and i == (rank(x) - 1,) {_more}
        given x: (m, k), w: (k, n) | i: (1,)
        SUM(matmul(x, w), axes=i, keepdims=k) \
            == matmul(SUM(x, axes=i, keepdims=k), w) \
            where rank(w) == 2 and len(i) > 0 and i[-1] < rank(x) - 1 {_more} {_range}
        given x: (b, m, k), w: (k, n) | i: (0, 1), k: 1
        SUM(matmul(x, w), axes=i, keepdims=1) \
            == matmul(SUM(x, axes=i[:len(i) - 1], keepdims=1), SUM(w, axes=(1,), keepdims=1)) \
            where rank(w) == 2 and len(i) > 1 and i[-1] == rank(x) - 1 {_more} {_range}
        given x: (b, m, k), w: (k, n) | i: (1, 2)
        SUM(matmul(x, w), axes=i, keepdims=0) \
            == squeeze(matmul(SUM(x, axes=i[:len(i) - 1], keepdims=0), SUM(w, axes=(1,), keepdims=1)), axes=(rank(x) - len(i),)) \
            where rank(w) == 2 and len(i) > 1 and i[-1] == rank(x) - 1 {_more} {_range}
        given x: (b, m, k), w: (k, n) | i: (1, 2)
        SUM(gemm(x, w, *c, transB=q, **a), axes=(1,), keepdims=1) \
            == {SUMMED} \
            where {WHOLE} {_more}
        given x: (m, k), w: (n, k), c: (n) | q: 1, a: {{alpha: 0.5, beta: 2.0, transA: 0}}
        SUM(gemm(x, w, *c, transB=q, **a), axes=(1,), keepdims=0) \
            == squeeze({SUMMED}, axes=(1,)) \
            where {WHOLE} {_more}
        given x: (m, k), w: (n, k), c: (n) | q: 1, a: {{alpha: 0.5, beta: 2.0, transA: 0}}
    """.replace("SUM", _sum.name)
    )


def _length(axis: int) -> str:
    """How long a transposed convolution's result is along an axis."""
    i, above = axis - 2, f"p[rank(x) + {axis - 4}]"
    return f"(dim(x, {axis}) - 1) * s[{i}] + (dim(w, {axis}) - 1) * d[{i}] + 1 + e[{i}] - p[{i}] - {above}"


def _of_all_positions(axes: tuple[int, ...]) -> str:
    """The condition that nothing is cut off: each element of the data is multiplied with each tap
    of the kernel once."""
    here = ", ".join(f"dim(x, {a})" for a in axes)
    more = ", ".join(f"{_length(a)} - dim(x, {a})" for a in axes)
    every, zeros = tuple(range(len(axes))), (0,) * len(axes)
    share = f"reduce_mean(pad(expand(1, shape=({here},)), pads={zeros} + ({more},)), axes={every}, keepdims=0)"
    return f"""
        reduce_mean(conv_transpose(x, w, *b, strides=s, pads=p, dilations=d, output_padding=e, group=g), axes={axes}, \
                keepdims=1) \
            == conv_transpose(reduce_mean(x, axes={axes}, keepdims=1), \
                mul(reduce_sum(w, axes={axes}, keepdims=1), {share}), *b, strides=s, pads=p, dilations=d, \
                output_padding={zeros}, group=g) \
            where rank(x) == {len(axes) + 2} and max(p) == 0 and min(p + e) == 0 and is_weight(w)
        given x: (n, 2*c, {", ".join("hkm"[: len(axes)])}), w: (2*c, o, {", ".join("323"[: len(axes)])}), b: (2*o) \
            | s: {(2, 1, 1)[: len(axes)]}, p: {zeros * 2}, d: {(1, 2, 1)[: len(axes)]}, e: {(1, 0, 0)[: len(axes)]}, g: 2
    """


def _along(axis: int, rank: int) -> str:
    """The first and the last element miss the taps that padding cuts off.

    The length of the data is a factor of the weights: it may leave the range of half precision.
    """
    i = axis - 2
    low, high = f"-(-p[{i}] // d[{i}])", f"max(-((e[{i}] - p[{rank - 4 + axis}]) // d[{i}]), 0)"
    part = f"axes=({axis},), steps=(1,)"
    first, last = (
        f"slice(x, starts=(0,), ends=(1,), {part})",
        f"slice(x, starts=(dim(x, {axis}) - 1,), ends=(dim(x, {axis}),), {part})",
    )
    cut = [f"starts=(0,), ends=({low},), {part}", f"starts=(dim(w, {axis}) - {high},), ends=(dim(w, {axis}),), {part}"]
    missed = ", ".join(f"neg(reduce_sum(slice(w, {each}), axes=({axis},), keepdims=1))" for each in cut)
    count = f"reduce_sum(expand(1, shape=(dim(x, {axis}),)), axes=(0,), keepdims=0)"
    share = f"reduce_mean(pad(expand(1, shape=(1,)), pads=(0, {_length(axis)} - 1)), axes=(0,), keepdims=0)"
    at = rank - 2
    pads = f"p[:{i}] + (0,) + p[{i + 1}:{at + i}] + (0,) + p[{at + i + 1}:]"
    sizes = ", ".join("hkm"[:at])
    return f"""
        reduce_mean(conv_transpose(x, w, *b, strides=s, pads=p, dilations=d, output_padding=e, group=1), axes=i, \
                keepdims=1) \
            == reduce_mean(conv_transpose(concat(reduce_mean(x, axes=({axis},), keepdims=1), {first}, {last}, axis=1), \
                mul(concat(mul(reduce_sum(w, axes=({axis},), keepdims=1), {count}), {missed}, axis=0), {share}), *b, \
                strides=s, pads={pads}, dilations=d, output_padding=e[:{i}] + (0,) + e[{i + 1}:], group=1), axes=i, \
                keepdims=1) \
            where rank(x) == {rank} and {axis} in i and dim(x, {axis}) != 1 and is_weight(w) and dtype(x) != "float16" \
                and min(p + e) >= 0 and p[{i}] <= s[{i}] and p[{at + i}] - e[{i}] <= s[{i}] \
                and max(p[{i}], p[{at + i}]) <= (dim(w, {axis}) - 1) * d[{i}]
        given x: (n, c, {sizes}), w: (c, o, {", ".join("344"[:at])}), b: (o) \
            | s: {(2, 2, 1)[:at]}, p: {(1, 1, 1)[:at] * 2}, d: {(1, 1, 2)[:at]}, e: {(1, 0, 0)[:at]}, i: ({axis},)
    """


for _rank in (3, 4, 5):
    reduce_mean.laws(_of_all_positions(tuple(range(2, _rank))))
for _rank in (3, 4, 5):
    for _axis in range(2, _rank):
        reduce_mean.laws(_along(_axis, _rank))
