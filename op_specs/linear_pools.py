"""Means of windows over the results of products and convolutions: what is linear takes the means of
its weights instead, and has as few results as the windows are."""

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
        where max(t) == 1 and max(d) == 1 and max(e) == 1 and max(q + f) == 0 and max(shape(w)[2:]) > 1 \
            and is_weight(w)
    given x: (n, 2*c, h, m), w: (2*o, c, 3, 3), b: (2*o) \
        | t: (1, 1), p: (1, 0, 1, 1), d: (1, 1), g: 2, k: (2, 4), s: (2, 4), q: (0, 0, 0, 0), e: (1, 1), f: (0, 0), c: 0
""")
