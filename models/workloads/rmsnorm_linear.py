"""Root mean square normalization and a linear layer, rms(X) W.

python models/workloads/rmsnorm_linear.py [--help]
"""

from taso_mirage.mugraph.graph import KernelGraph, new_graph


def rmsnorm_linear(batch: int = 1, width: int = 4096, hidden: int = 6144) -> KernelGraph:
    """X (2 batch, width), W (width, hidden) -> (2 batch, hidden)"""
    graph = new_graph()
    x = graph.new_input(dims=(2 * batch, width), name="X")
    w = graph.new_input(dims=(width, hidden), name="W")
    graph.mark_output(graph.matmul(graph.rms_norm(x), w))
    return graph


if __name__ == "__main__":
    from command import main

    main(rmsnorm_linear)
