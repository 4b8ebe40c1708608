"""Fused operators of a runtime that hide products with large weights, as those and the rest: each
then has kernels of its own."""

from __future__ import annotations

from collections.abc import Mapping

from taso_mirage.forms.base.form import PreparedKinds
from taso_mirage.ir.model import Model
from taso_mirage.ir.terms import Node, topological, with_args
from taso_mirage.operators.ops import traits
from taso_mirage.search.weights import fold_weights


def decomposed(model: Model, sizes: Mapping[str, int], prepared: PreparedKinds) -> Model:
    """The model with fused terms taken apart (`Traits.decomposition`).

    Each becomes its products and the rest, if there are kernels for the products at these sizes of
    the symbols. The result is the same model where there is no such term.
    """
    done: dict[Node, Node] = {}
    for node in model.nodes():
        done[node] = new = with_args(node, tuple([done[a] for a in node.args]))
        if (decompose := traits(node).apart) is not None and (apart := decompose(new)) is not None:
            made = topological([apart], stop=new.args)
            done[node] = apart if any(n.args and prepared.begins(n, sizes) for n in made) else new
    outputs = tuple([done[o] for o in model.graph.outputs])
    return model if outputs == model.graph.outputs else fold_weights(model.with_graph(outputs))[0]
