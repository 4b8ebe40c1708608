"""Sums and means over the results of products, as products with sums: what is linear commutes with
them."""

from op_specs.reductions import reduce_mean, reduce_sum

SUMMED = "gemm(x, SUM(w, axes=(1 - q,), keepdims=1), SUM(*c, axes=(rank(c) - 1,), keepdims=1), transB=q, **a)"
WHOLE = "rank(c) > 0 and dim(c, -1) == dim(w, 1 - q)"

for _sum, _more in ((reduce_sum, ""), (reduce_mean, "and is_float(x)")):
    _sum.laws(
        f"""
        # over the columns, over others, and over both
        SUM(matmul(x, w), axes=i, keepdims=k) \
            == matmul(x, SUM(w, axes=(1,), keepdims=k)) \
            where rank(x) > 1 and rank(w) == 2 and i == (rank(x) - 1,) {_more}
        given x: (m, k), w: (k, n) | i: (1,), k: 1
        SUM(matmul(x, w), axes=i, keepdims=k) \
            == matmul(SUM(x, axes=i, keepdims=k), w) \
            where rank(w) == 2 and len(i) > 0 and i[-1] < rank(x) - 1 {_more}
        given x: (b, m, k), w: (k, n) | i: (0, 1), k: 1
        SUM(matmul(x, w), axes=i, keepdims=k) \
            == matmul(SUM(x, axes=i[:len(i) - 1], keepdims=k), SUM(w, axes=(1,), keepdims=k)) \
            where rank(w) == 2 and len(i) > 1 and i[-1] == rank(x) - 1 {_more}
        given x: (b, m, k), w: (k, n) | i: (1, 2), k: 1
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
