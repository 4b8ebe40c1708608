"""A model's operators as terms of kernels: terms of forms, with weights in the order in which they
are loaded, and back to the original operators where no kernel was made; and operators that contain
products, taken apart."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from taso_mirage.forms.base.conversion import Conversion
from taso_mirage.forms.base.form import ModelTerms, PreparedKinds, in_operators
from taso_mirage.forms.base.in_operators import FIRST, LAST
from taso_mirage.ir.model import Model, Weight
from taso_mirage.ir.terms import Node, topological, users, with_args
from taso_mirage.operators.ops import term, traits
from taso_mirage.rewriting.forms import ADDED, RegionPattern
from taso_mirage.runtime.embed import EmbeddedRegion
from taso_mirage.search.weights import fold_weights

TO_FIRST, TO_LAST = (RegionPattern(f"transpose(y, perm={perm})") for perm in (FIRST, LAST))


@dataclass(frozen=True, slots=True)
class ModelInTerms:
    """A model with operators in the form for kernels. `weights` are those of the model of which it
    was made, and `originals` map its own terms to them."""

    model: Model
    originals: Mapping[Node, Node]
    weights: Mapping[str, Weight]
    biases: Mapping[Node, Node]
    """The biases of convolutions, by the terms that are added in their place."""
    places: Mapping[Node, Node]
    """The terms of the model of which it was made, by those that have their values."""

    def in_original(self, region: EmbeddedRegion) -> EmbeddedRegion | None:
        """The place of a region in the model of which this one was made; None where that model does
        not have its operands and results: weights and images in the order of a form."""
        if not all(n in self.places for n in (*region.inputs, *region.outputs)):
            return None
        inputs, outputs = (tuple(self.places[n] for n in side) for side in (region.inputs, region.outputs))
        return replace(region, inputs=inputs, outputs=outputs)

    def without_rest(self, model: Model) -> Model:
        """This model, some parts of which are kernels now, with all other parts as in the original:
        pairs of transpositions that cancel are left out, and weights are the original's."""
        outputs = in_operators(model.graph.outputs)
        done: dict[Node, Node] = dict(self.originals)
        for node in topological(outputs):
            if node not in done:
                new = with_args(node, tuple([done[a] for a in node.args]))
                done[node] = self._with_bias(_once_turned(new))
        return _with_outputs(model, tuple([done[o] for o in outputs]), {**self.weights, **model.weights})

    def _with_bias(self, node: Node) -> Node:
        """A convolution to which its own bias is added."""
        b = next((self.biases[a] for a in node.args if a in self.biases), None)
        if b is None or ADDED.match(node) is None:
            return node
        conv = next(a for a in node.args if a not in self.biases)
        return term(conv.op, *conv.args[:2], b, **dict(conv.attrs))


def _once_turned(node: Node) -> Node:
    """The term between two transpositions of an image that cancel; other terms as they are."""
    for first, second in ((TO_LAST, TO_FIRST), (TO_FIRST, TO_LAST)):
        outer = second.match(node)
        inner = None if outer is None else first.match(outer["y"])
        if inner is not None:
            found: Node = inner["y"]
            return found
    return node


def with_terms(model: Model, kinds: Sequence[ModelTerms]) -> ModelInTerms:
    """A model with some operators as terms of forms, each with the operators that alone read its
    result."""
    ends, made = _ends(model, kinds), Conversion(dict(model.weights))
    for node in model.nodes():
        terms, members = ends.get(node, (None, []))
        new = None if terms is None else terms.term(members, made)
        made.done[node] = new or with_args(node, tuple([made.done[a] for a in node.args]))
    outputs = tuple([made.done[o] for o in model.graph.outputs])
    kept = _with_outputs(model, outputs, made.weights)
    return ModelInTerms(kept, made.originals, model.weights, made.biases, {new: old for old, new in made.done.items()})


def _ends(model: Model, kinds: Sequence[ModelTerms]) -> dict[Node, tuple[ModelTerms, list[Node]]]:
    """The terms that can become forms, with their epilogues, by the last operator of each; a sum of
    two belongs to one of them."""
    order = model.nodes()
    readers, wanted = users(order), set(model.graph.outputs)
    position = {node: i for i, node in enumerate(order)}
    found: dict[Node, tuple[ModelTerms, list[Node]]] = {}
    for node in order:
        for terms in kinds:
            if members := terms.members(node, lambda n: readers.get(n, ()), wanted.__contains__, position):
                alone = members[-1] in found
                found[node if alone else members[-1]] = terms, [node] if alone else members
    return found


def _with_outputs(model: Model, outputs: tuple[Node, ...], weights: Mapping[str, Weight]) -> Model:
    """The model with other outputs and the weights that these depend on."""
    used = {n.attr("name") for n in topological(outputs) if n.op == "weight"}
    return model.with_graph(outputs, {name: each for name, each in weights.items() if name in used})


def decompose(model: Model, sizes: Mapping[str, int], prepared: PreparedKinds) -> Model:
    """The model with fused terms taken apart (`Traits.decomposition`).

    Each becomes its products and the rest, if there are kernels for the products at these sizes of
    the symbols. Without such terms the result is the model itself.
    """
    done: dict[Node, Node] = {}
    for node in model.nodes():
        done[node] = new = with_args(node, tuple([done[a] for a in node.args]))
        if (parts := traits(node).apart) is not None and (apart := parts(new)) is not None:
            made = topological([apart], stop=new.args)
            done[node] = apart if any(n.args and prepared.begins(n, sizes) for n in made) else new
    outputs = tuple([done[o] for o in model.graph.outputs])
    return model if outputs == model.graph.outputs else fold_weights(model.with_graph(outputs))[0]
