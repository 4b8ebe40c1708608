"""Attention with few key heads, softmax(Q K) V; the queries of a group are rows of one head.

python models/workloads/gqa.py [--help]
"""

from taso_mirage.mugraph.graph import KernelGraph, new_graph


def gqa(batch: int = 1, queries: int = 256, width: int = 64, keys: int = 4096) -> KernelGraph:
    """Q (2 batch, queries, width), K (2 batch, width, keys), V (2 batch, keys, width) -> the type
    of Q"""
    graph = new_graph()
    q = graph.new_input(dims=(2 * batch, queries, width), name="Q")
    k = graph.new_input(dims=(2 * batch, width, keys), name="K")
    v = graph.new_input(dims=(2 * batch, keys, width), name="V")
    graph.mark_output(graph.matmul(graph.softmax(graph.matmul(q, k)), v))
    return graph


if __name__ == "__main__":
    from command import main

    main(gqa)
