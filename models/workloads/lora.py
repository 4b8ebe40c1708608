"""A linear layer with a low-rank adapter, X W + (X A) B.

python models/workloads/lora.py [--help]
"""

from taso_mirage.mugraph.graph import KernelGraph, new_graph


def lora(batch: int = 16, width: int = 256, hidden: int = 4096, rank: int = 16) -> KernelGraph:
    """X (batch, width), W (width, hidden), A (width, rank), B (rank, hidden) -> (batch, hidden)"""
    graph = new_graph()
    x = graph.new_input(dims=(batch, width), name="X")
    w = graph.new_input(dims=(width, hidden), name="W")
    a = graph.new_input(dims=(width, rank), name="A")
    b = graph.new_input(dims=(rank, hidden), name="B")
    graph.mark_output(graph.add(graph.matmul(x, w), graph.matmul(graph.matmul(x, a), b)))
    return graph


if __name__ == "__main__":
    from command import main

    main(lora)
