"""Means of windows over the results of products and convolutions: a linear operator uses the means
of its weights instead, and has only as many results as there are windows."""

from op_specs.pool import average_pool

POOLED = "squeeze(average_pool(unsqueeze({}, axes=(1,)), **p), axes=(1,))"
"""The means of windows of columns of a matrix."""
BIAS = "squeeze(average_pool(reshape(*c, shape=(1, 1, dim(c, 0))), **p), axes=(1,))"

average_pool.laws(f"""
    average_pool(unsqueeze(matmul(x, w), axes=(1,)), **p) \
        == unsqueeze(matmul(x, {POOLED.format("w")}), axes=(1,)) \
        where rank(x) == 2 and rank(w) == 2 and is_weight(w)
    given x: (m, k), w: (k, 4*n) \
        | p: {{kernel: (4,), strides: (4,), pads: (0, 0), dilations: (1,), extra: (0,), count_include_pad: 0}}
    average_pool(unsqueeze(gemm(x, w, *c, transB=0, **a), axes=(1,)), **p) \
        == unsqueeze(gemm(x, {POOLED.format("w")}, {BIAS}, transB=0, **a), axes=(1,)) \
        where is_weight(w) and shape(c) == (dim(w, 1),)
    given x: (m, k), w: (k, 4*n), c: (4*n) | a: {{alpha: 0.5, beta: 2.0, transA: 0}}, \
        p: {{kernel: (4,), strides: (4,), pads: (0, 0), dilations: (1,), extra: (0,), count_include_pad: 0}}
    average_pool(unsqueeze(gemm(x, w, *c, transB=1, **a), axes=(1,)), **p) \
        == unsqueeze(gemm(x, {POOLED.format("transpose(w, perm=(1, 0))")}, {BIAS}, transB=0, **a), axes=(1,)) \
        where is_weight(w) and shape(c) == (dim(w, 0),)
    given x: (m, k), w: (4*n, k), c: (4*n) | a: {{alpha: 0.5, beta: 2.0, transA: 0}}, \
        p: {{kernel: (4,), strides: (4,), pads: (0, 0), dilations: (1,), extra: (0,), count_include_pad: 0}}
    average_pool(matmul(x, w), **p) \
        == matmul(x, squeeze(average_pool(unsqueeze(w, axes=(0,)), **p), axes=(0,))) \
        where rank(w) == 2 and is_weight(w)
    given x: (b, m, k), w: (k, 4*n) \
        | p: {{kernel: (4,), strides: (4,), pads: (0, 0), dilations: (1,), extra: (0,), count_include_pad: 0}}

    # each window of results sees one larger window
    average_pool(conv(x, w, *b, strides=t, pads=p, dilations=d, group=g), kernel=k, strides=s, pads=q, dilations=e, \
            extra=f, count_include_pad=c) \
        == conv(x, average_pool(w, kernel=k, strides=t, pads=minus(k, t) + minus(k, t), dilations=t, extra=f, \
            count_include_pad=1), *b, strides=s, pads=p, dilations=d, group=g) \
        where max(t) == 1 and max(d) == 1 and max(e) == 1 and max(q + f) == 0 and min(q + f) == 0 and max(shape(w)[2:]) > 1 \
            and is_weight(w)
    given x: (n, 2*c, h, m), w: (2*o, c, 3, 3), b: (2*o) \
        | t: (1, 1), p: (1, 0, 1, 1), d: (1, 1), g: 2, k: (2, 4), s: (2, 4), q: (0, 0, 0, 0), e: (1, 1), f: (0, 0), c: 0
""")


def _of_transposed() -> str:
    """A mean of windows with the stride of a transposed convolution, or a multiple of it, sees data
    without zeros between neighbours: it is a convolution with the means of the flipped kernel."""
    size, stride, pad, window = "dim(w, 2)", "s[0]", "p[0]", "k[0]"
    low = f"max(-(({pad} + {stride} - {size}) // {stride}), 0)"
    before = f"({window} + {pad} + {stride} * {low} - {size})"
    taps = f"(({size} - 1 + {before}) // {stride} + 1)"
    after = f"({stride} * ({taps} - 1) + {window} - {before} - {size})"
    high = f"({taps} - {low} - 1 + ({size} - 2 * {pad} + e[0] - {window}) // {stride})"
    n = "(rank(x) - 2)"
    flipped = (
        f"slice(transpose(w, perm=(1, 0) + iota(rank(x))[2:]), starts=({size} - 1,) * {n}, ends=(-1,) * {n}, "
        f"axes=iota(rank(x))[2:], steps=(-1,) * {n})"
    )
    margins = f"(0, 0) + ({before},) * {n} + (0, 0) + ({after},) * {n}"
    return f"""
    average_pool(conv_transpose(x, w, *b, strides=s, pads=p, dilations=d, output_padding=e, group=1), kernel=k, \
            strides=k, pads=q, dilations=d, extra=f, count_include_pad=c) \
        == conv(x, average_pool(pad({flipped}, pads={margins}), kernel=k, strides=s, pads=q, dilations=d, extra=f, \
            count_include_pad=c), *b, strides=({window} // {stride},) * {n}, \
            pads=({low},) * {n} + ({high},) * {n}, dilations=d, group=1) \
        where max(d) == 1 and max(q + f) == 0 and min(p + q + f + e) == 0 and s == ({stride},) * {n} and p == ({pad},) * (2 * {n}) \
            and e == (e[0],) * {n} and k == ({window},) * {n} and shape(w)[2:] == ({size},) * {n} \
            and {window} % {stride} == 0 and {high} >= 0 and is_weight(w)
    given x: (n, c, h, m), w: (c, o, 3, 3), b: (o) \
        | s: (2, 2), p: (1, 1, 1, 1), d: (1, 1), e: (1, 1), k: (2, 2), q: (0, 0, 0, 0), f: (0, 0), c: 0
"""


average_pool.laws(_of_transposed())
average_pool.laws("""
    average_pool(average_pool(x, kernel=k, strides=k, pads=p, dilations=d, extra=e, count_include_pad=c), kernel=m, \
            strides=m, pads=p, dilations=d, extra=e, count_include_pad=b) \
        == average_pool(x, kernel=(k[0] * m[0],) * len(k), strides=(k[0] * m[0],) * len(k), pads=p, dilations=d, \
            extra=e, count_include_pad=c) \
        where max(p + e) == 0 and min(p + e) == 0 and max(d) == 1 and k == (k[0],) * len(k) and m == (m[0],) * len(m)
    given x: (n, c, h, l) | k: (2, 2), m: (3, 3), p: (0, 0, 0, 0), d: (1, 1), e: (0, 0), c: 0, b: 1
""")
