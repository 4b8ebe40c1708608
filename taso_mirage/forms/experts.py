"""Layers of experts as kernels for the CPU: of each expert only the rows of those tokens are
computed that have a share of it.

That a model contains such a layer is proved (`base/expert_reading.py`). Both ways to write one
become the operator `experts`, whose shares say in each run which rows an expert has; that it
computes the layer is tested in the field.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from math import inf

from taso_mirage.devices.device import Device
from taso_mirage.emit.cpu.elementwise import has_cpp
from taso_mirage.emit.cpu.prepared import CpuProgram, TemplateInstance
from taso_mirage.forms.base.expert_layers import ExpertLayer, ExpertProduct
from taso_mirage.forms.base.expert_reading import expert_layer, possible_layer
from taso_mirage.forms.base.form import Form, IsWanted, Users
from taso_mirage.ir.dims import Symbolic, dim_product
from taso_mirage.ir.terms import ABSENT, Graph, Node, is_constant, topological
from taso_mirage.mugraph.found import FoundMuGraph
from taso_mirage.mugraph.free import FreeSizes, with_free_names
from taso_mirage.mugraph.verification import verified_mugraph
from taso_mirage.operators.expressions import is_weight
from taso_mirage.operators.ops import term
from taso_mirage.operators.work import work
from taso_mirage.verdicts import Evidence, Failure

BLOCKS = (64, 6), (32, 6), (16, 6)
"""Columns of a strip, and rows of a tile."""


@dataclass(frozen=True, slots=True)
class RowsOfExperts:
    """A goal that is a layer of experts."""

    layer: ExpertLayer
    large, once, joins, by_values = True, False, False, True
    together = "experts"
    slack = inf

    @property
    def known(self) -> list[Node]:
        """The operands that are weights."""
        return self.layer.known

    def mugraph(self, block: tuple[int, int]) -> Node:
        """The layer by the rows of each expert."""
        layer = self.layer
        (a, *more), last = layer.products, layer.last
        b = more[0] if more else ExpertProduct(ABSENT)
        operands = layer.x, a.w, layer.dense_shares(), b.w, last.w, a.b, b.b, last.b
        attrs = {
            "hidden": layer.hidden,
            "columns": tuple([(each.start, each.step) for each in layer.products]),
            "by_expert": layer.by_expert,
            "transposed": tuple([int(each.transposed) for each in (a, b, last)]),
        }
        return term("experts", *operands, block=block, **attrs)

    def mugraphs(self, graph: Graph, device: Device) -> list[FoundMuGraph]:
        """The verified muGraphs of `graph`, from which this goal was read, at one estimate."""
        evidence = _evidence(self.layer.small())
        if not isinstance(evidence, Evidence):
            return []
        made = [Graph(graph.inputs, (self.mugraph(block),)) for block in BLOCKS]
        seconds = work(self.layer.goal, {}).flops / device.flops
        return [FoundMuGraph(each, graph, seconds, device.name, evidence) for each in made]

    def saved(self, device: Device) -> float:
        """Seconds that the kernel may save: half of those of all products."""
        return work(self.layer.goal, {}).flops / 2 / device.flops


@lru_cache(maxsize=64)
def _evidence(layer: ExpertLayer) -> Evidence | Failure:
    """At small sizes: the algebra depends on none of them."""
    leaves = tuple([n for n in topological([layer.goal]) if n.op == "input"])
    mine = RowsOfExperts(layer).mugraph(BLOCKS[0])
    return verified_mugraph(Graph(leaves, (mine,)), Graph(leaves, (layer.goal,)))


def rows_of_experts(goal: Graph) -> RowsOfExperts | None:
    """Read a goal that is a layer of experts; None for other goals."""
    layer = expert_layer(goal)
    return RowsOfExperts(layer) if layer is not None and has_cpp(layer.hidden) else None


def _follows(goal: Graph, named: Graph, free: FreeSizes) -> bool:
    """Whether the layer that a goal is, with names for its sizes, is the goal at every size."""
    made, every = expert_layer(goal), expert_layer(named)
    if made is None or every is None:
        return False
    return with_free_names(Graph(goal.inputs, (made.goal,)), free).outputs == (every.goal,)


# ---------------------------------------------------------------- the program


def _instance(node: Node) -> TemplateInstance:
    x, first, _, beside, last, *biases = (*node.args, ABSENT, ABSENT, ABSENT)[:8]
    (columns, most), rows = node.attr("block"), dim_product(x.shape[:-1])
    products = [
        ExpertProduct(w, ABSENT, bool(t)) for w, t in zip((first, beside, last), node.attr("transposed"), strict=True)
    ]
    (wide, width), free = products[2].sizes, isinstance(rows, Symbolic)
    read = [(each.sizes[1], *own) for each, own in zip(products, node.attr("columns"), strict=False)]
    sizes = 0 if free else rows, first.shape[0], products[0].sizes[0], wide, width
    strips = -(-wide // columns)
    return TemplateInstance(
        headers=("experts.h",),
        name="Experts",
        block=columns,
        sizes=(*sizes, *(n for each in (read[0], read[-1]) for n in each), columns, most),
        layout=("experts", columns),
        switches=(
            bool(node.attr("by_expert")),
            *(each.transposed for each in products),
            *(b is not ABSENT for b in biases),
            free,
        ),
        fixed=(*x.shape[-1:], *last.shape),
        rows=rows if free else 0,
        weights=(1, 3, 4, 5, 6, 7),
        first=(strips, 4 * columns * first.shape[0] * rows, 0),
        function=(node.attr("hidden"), columns),
    )


def _members(node: Node, users: Users, wanted: IsWanted, sizes: Mapping[str, int]) -> list[Node]:
    """The terms of a layer, by its sum."""
    made = possible_layer(node)
    if made is None or not all(map(is_weight, made.known)):
        return []
    leaves = set(made.leaves)
    return [each for each in topological([node], stop=leaves) if each not in leaves and not is_constant(each)]


FORM = Form(CpuProgram("experts", _instance), rows_of_experts, _members, follows=_follows)
