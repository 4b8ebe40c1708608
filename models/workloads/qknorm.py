"""Attention of normalized queries and keys, softmax(rms(Q) rms(K)) V.

python models/workloads/qknorm.py [--help]
"""

from taso_mirage.mugraph.graph import KernelGraph, new_graph


def qknorm(batch: int = 1, queries: int = 256, width: int = 64, keys: int = 4096) -> KernelGraph:
    """Q (2 batch, queries, width), K and V (2 batch, keys, width) -> the type of Q"""
    graph = new_graph()
    q = graph.new_input(dims=(2 * batch, queries, width), name="Q")
    k = graph.new_input(dims=(2 * batch, keys, width), name="K")
    v = graph.new_input(dims=(2 * batch, keys, width), name="V")
    scores = graph.matmul(graph.rms_norm(q), graph.transpose(graph.rms_norm(k), 0, 2, 1))
    graph.mark_output(graph.matmul(graph.softmax(scores), v))
    return graph


if __name__ == "__main__":
    from command import main

    main(qknorm)
