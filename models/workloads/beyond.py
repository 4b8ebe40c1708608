"""Programs that Mirage's public search cannot take: more than three inputs, a bias, a scale and a
mask, long keys, three weights, rotated queries and keys, 8-bit floats with scales, keys that are
values.

    python models/workloads/beyond.py NAME [--help]
"""

from taso_mirage.mugraph.graph import KernelGraph, float8, new_graph


def rmsnorm_gamma_linear(batch: int = 16, width: int = 4096, hidden: int = 6144) -> KernelGraph:
    """(rms(X) * gamma) W + bias: X (batch, width), gamma (width), W (width, hidden), bias
    (hidden)"""
    graph = new_graph()
    x = graph.new_input(dims=(batch, width), name="X")
    gamma = graph.new_input(dims=(width,), name="gamma")
    w = graph.new_input(dims=(width, hidden), name="W")
    bias = graph.new_input(dims=(hidden,), name="bias")
    graph.mark_output(graph.add(graph.matmul(graph.rms_norm(x, gamma), w), bias))
    return graph


def linear_bias(batch: int = 16, width: int = 4096, hidden: int = 4096) -> KernelGraph:
    """X W + bias: X (batch, width), W (width, hidden), bias (hidden)"""
    graph = new_graph()
    x = graph.new_input(dims=(batch, width), name="X")
    w = graph.new_input(dims=(width, hidden), name="W")
    bias = graph.new_input(dims=(hidden,), name="bias")
    graph.mark_output(graph.add(graph.matmul(x, w), bias))
    return graph


def masked_attention(heads: int = 2, queries: int = 256, width: int = 64, keys: int = 4096) -> KernelGraph:
    """softmax(Q K / 8 + M) V: Q (heads, queries, width), K (heads, width, keys), V (heads, keys,
    width), M (queries, keys)"""
    graph = new_graph()
    q = graph.new_input(dims=(heads, queries, width), name="Q")
    k = graph.new_input(dims=(heads, width, keys), name="K")
    v = graph.new_input(dims=(heads, keys, width), name="V")
    mask = graph.new_input(dims=(queries, keys), name="M")
    scores = graph.add(graph.mul(graph.matmul(q, k), width**-0.5), mask)
    graph.mark_output(graph.matmul(graph.softmax(scores), v))
    return graph


def long_attention(heads: int = 8, group: int = 8, queries: int = 1, width: int = 128, keys: int = 8192) -> KernelGraph:
    """softmax(Q K) V where `group` query heads share a key head, as in decoding after `keys`
    tokens.

    Q (heads, group, queries, width), K (heads, 1, width, keys), V (heads, 1, keys, width)
    """
    graph = new_graph()
    q = graph.new_input(dims=(heads, group, queries, width), name="Q")
    k = graph.new_input(dims=(heads, 1, width, keys), name="K")
    v = graph.new_input(dims=(heads, 1, keys, width), name="V")
    graph.mark_output(graph.matmul(graph.softmax(graph.matmul(q, k)), v))
    return graph


def gated_mlp_down(batch: int = 8, width: int = 4096, hidden: int = 4096) -> KernelGraph:
    """(silu(X W1) * (X W2)) W3: X (batch, width), W1 and W2 (width, hidden), W3 (hidden, width)"""
    graph = new_graph()
    x = graph.new_input(dims=(batch, width), name="X")
    gate = graph.new_input(dims=(width, hidden), name="W1")
    up = graph.new_input(dims=(width, hidden), name="W2")
    down = graph.new_input(dims=(hidden, width), name="W3")
    inner = graph.mul(graph.silu(graph.matmul(x, gate)), graph.matmul(x, up))
    graph.mark_output(graph.matmul(inner, down))
    return graph


def rotary_attention(heads: int = 2, queries: int = 256, width: int = 64, keys: int = 4096) -> KernelGraph:
    """softmax(rotated(Q) K) V, where rotated(Q) = Q * cos + R * sin, and R is Q with its halves
    exchanged, the first negated.

    Q and R (heads, queries, width), cos and sin (queries, width), K (heads, width, keys), V (heads,
    keys, width)
    """
    graph = new_graph()
    q, r = (graph.new_input(dims=(heads, queries, width), name=name) for name in "QR")
    cos, sin = (graph.new_input(dims=(queries, width), name=name) for name in ("cos", "sin"))
    k = graph.new_input(dims=(heads, width, keys), name="K")
    v = graph.new_input(dims=(heads, keys, width), name="V")
    rotated = graph.add(graph.mul(q, cos), graph.mul(r, sin))
    graph.mark_output(graph.matmul(graph.softmax(graph.matmul(rotated, k)), v))
    return graph


def float8_linear(batch: int = 16, width: int = 4096, hidden: int = 4096, rows: int = 1) -> KernelGraph:
    """X W^T, both 8-bit floats: X (batch, width), W (hidden, width), with scales of their rows, or
    where `rows` is 0, of the whole"""
    graph = new_graph()
    x = graph.new_input(dims=(batch, width), dtype=float8, name="X")
    w = graph.new_input(dims=(hidden, width), dtype=float8, name="W")
    s, t = (graph.new_input(dims=(n,) if rows else (), name=name) for n, name in ((batch, "S"), (hidden, "T")))
    graph.mark_output(graph.matmul(graph.dequantize(x, s), graph.transpose(graph.dequantize(w, t), 1, 0)))
    return graph


def float8_attention(heads: int = 8, group: int = 16, width: int = 128, keys: int = 8192) -> KernelGraph:
    """softmax(Q K^T) V, all 8-bit floats with a scale each: Q (heads, group, width), K and V
    (heads, keys, width)"""
    graph = new_graph()
    q = graph.new_input(dims=(heads, group, width), dtype=float8, name="Q")
    k, v = (graph.new_input(dims=(heads, keys, width), dtype=float8, name=name) for name in "KV")
    scales = [graph.new_input(dims=(), name=f"S{name}") for name in "QKV"]
    a, b, c = (graph.dequantize(x, s) for x, s in zip((q, k, v), scales, strict=True))
    graph.mark_output(graph.matmul(graph.softmax(graph.matmul(a, graph.transpose(b, 0, 2, 1))), c))
    return graph


def latent_attention(heads: int = 128, width: int = 512, rotary: int = 64, keys: int = 8192) -> KernelGraph:
    """softmax(Q C^T + P R^T) C: all heads share one latent head, whose rows are keys and values, as
    in multi-head latent attention with absorbed weights (DeepSeek-V2, 2024, section 2.1).

    Q (heads, width), P (heads, rotary), C (keys, width), R (keys, rotary) -> (heads, width)
    """
    graph = new_graph()
    q, p = (graph.new_input(dims=(heads, n), name=name) for n, name in ((width, "Q"), (rotary, "P")))
    c, r = (graph.new_input(dims=(keys, n), name=name) for n, name in ((width, "C"), (rotary, "R")))
    scores = [graph.matmul(a, graph.transpose(b, 1, 0)) for a, b in ((q, c), (p, r))]
    graph.mark_output(graph.matmul(graph.softmax(graph.add(*scores)), c))
    return graph


BUILDERS = (
    *(rmsnorm_gamma_linear, linear_bias, masked_attention, long_attention, gated_mlp_down, rotary_attention),
    *(float8_linear, float8_attention, latent_attention),
)


if __name__ == "__main__":
    import sys

    from command import main

    builders = {each.__name__: each for each in BUILDERS}
    name = sys.argv[1] if len(sys.argv) > 1 else ""
    if name not in builders:
        sys.exit(f"usage: beyond.py NAME [--help], where NAME is one of {', '.join(builders)}")
    main(builders[name], sys.argv[2:])
