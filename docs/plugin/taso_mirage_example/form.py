"""A kernel that is written by hand: distances of rows from known ones on a CPU (`distances.h`)."""

from dataclasses import dataclass
from functools import cache
from pathlib import Path

from taso_mirage.emit.cpu.prepared import CpuProgram, TemplateInstance
from taso_mirage.forms.base.form import Form
from taso_mirage.ir.terms import Graph, Tensor, variable
from taso_mirage.mugraph.found import FoundMuGraph
from taso_mirage.mugraph.verification import verified_mugraph
from taso_mirage.operators.expressions import is_weight
from taso_mirage.operators.ops import term
from taso_mirage.operators.work import work
from taso_mirage.verdicts import Evidence

BLOCKS = (64, 1), (32, 4), (16, 8)
"""Known rows that lie side by side, a multiple of 16, and the number of parts of the rows of x."""
LEAST = 1 << 12
"""Numbers of the known rows: a smaller kernel is not tried."""


def is_distance(node):
    """Whether a term of a model is one that there are kernels for."""
    if node.op != "cdist" or node.attr("metric") != "euclidean" or node.dtype != "float32":
        return False
    fixed = all(isinstance(n, int) for arg in node.args for n in arg.shape)
    return fixed and is_weight(node.args[1])


@dataclass(frozen=True)
class DistanceGoal:
    """A goal of one result: the distances of the rows of x from those of w."""

    x: object
    w: object
    once = False  # whether it is measured at one batch alone
    joins = False  # whether it may become one kernel with its neighbours
    together = "distances"  # goals of one name are tried in a model together
    slack = 1.0  # a kernel that is slower than the runtime's is not tried in the model

    @property
    def known(self):
        return [self.w]

    @property
    def large(self):
        return self.w.shape[0] * self.w.shape[1] >= LEAST

    def mugraphs(self, graph, device):
        """The verified muGraphs of the goal, one for each size of a block."""
        evidence = evidence_at_small_sizes()
        if not isinstance(evidence, Evidence):
            return []
        made = [Graph(graph.inputs, (term("distances", self.x, self.w, block=block),)) for block in BLOCKS]
        return [FoundMuGraph(each, graph, self.saved(device), device.name, evidence) for each in made]

    def saved(self, device):
        """Seconds of the arithmetic, of which a kernel may save a part."""
        return work(term("cdist", self.x, self.w), {}).flops / device.flops


@cache
def evidence_at_small_sizes():
    """That the two operators compute the same; the algebra depends on no size."""
    x, w = variable("x", Tensor("float32", (2, 3))), variable("w", Tensor("float32", (5, 3)))
    return verified_mugraph(Graph((x, w), (term("distances", x, w),)), Graph((x, w), (term("cdist", x, w),)))


def read(goal):
    """A goal of one distance between its inputs; None for others."""
    (output, *more) = goal.outputs
    if more or output.op != "cdist" or output.attr("metric") != "euclidean" or output.dtype != "float32":
        return None
    return DistanceGoal(*output.args) if {*output.args} <= {*goal.inputs} else None


def members(node, users, wanted, sizes):
    """The terms of a model that one kernel computes."""
    return [node] if is_distance(node) else []


def instance(node):
    """The instance of the class template of `distances.h` that computes a term."""
    x, w = node.args
    block = node.attr("block")
    return TemplateInstance(
        headers=(Path(__file__).with_name("distances.h"),),
        name="Distances",
        block=block[0],
        sizes=(*x.shape, w.shape[0], *block),
        layout=block[:1],
        fixed=x.shape,
    )


FORM = Form(CpuProgram("distances", instance), read, members)
