"""The gate of a gated MLP, silu(X W1) * (X W2).

python models/workloads/gated_mlp.py [--help]
"""

from taso_mirage.mugraph.graph import KernelGraph, new_graph


def gated_mlp(batch: int = 8, width: int = 4096, hidden: int = 4096) -> KernelGraph:
    """X (batch, width), W1 and W2 (width, hidden) -> (batch, hidden)"""
    graph = new_graph()
    x = graph.new_input(dims=(batch, width), name="X")
    gate = graph.new_input(dims=(width, hidden), name="W1")
    up = graph.new_input(dims=(width, hidden), name="W2")
    graph.mark_output(graph.mul(graph.silu(graph.matmul(x, gate)), graph.matmul(x, up)))
    return graph


if __name__ == "__main__":
    from command import main

    main(gated_mlp)
