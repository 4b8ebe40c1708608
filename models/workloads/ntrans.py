"""The residual update of the normalized transformer, rms(X + a (rms(H) - X)).

python models/workloads/ntrans.py [--help]
"""

from taso_mirage.mugraph.graph import KernelGraph, new_graph


def ntrans(batch: int = 1, width: int = 4096) -> KernelGraph:
    """X and H (8 batch, width), a (width) -> (8 batch, width)"""
    graph = new_graph()
    x = graph.new_input(dims=(8 * batch, width), name="X")
    h = graph.new_input(dims=(8 * batch, width), name="H")
    a = graph.new_input(dims=(width,), name="a")
    step = graph.mul(a, graph.sub(graph.rms_norm(h), x))
    graph.mark_output(graph.rms_norm(graph.add(x, step)))
    return graph


if __name__ == "__main__":
    from command import main

    main(ntrans)
