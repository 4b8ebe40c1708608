"""The predicted saving by another layout of a target's options. A GPU computes convolutions in half
precision with channels last, and otherwise copies images to and from that layout."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from taso_mirage.ir.model import Model
from taso_mirage.ir.terms import Node, Tensor
from taso_mirage.measure.target import Target
from taso_mirage.operators.ops import get, traits
from taso_mirage.operators.work import size, sized
from taso_mirage.rewriting.derived_traits import multiplies
from taso_mirage.rewriting.equation import work_terms
from taso_mirage.search.passes import Context

COPIES = 2
"""How often a copy goes through memory: it is read, and written."""
STAY = 0.5
"""The share of the copies that stay: at operators that have no other layout."""
DOMINATE = 0.25
"""The share of a model's seconds on a roofline from which on its convolutions decide the layout."""


def convolutions_decide(model: Model, context: Context) -> bool:
    """Whether the operators that a target's options run in another way take a large part of a
    model's seconds on a roofline."""
    terms = work_terms(model.nodes())
    suited = sum(context.estimate(n) for n in terms if traits(n).layout)
    return suited >= DOMINATE * sum(map(context.estimate, terms))


def saved_seconds(model: Model, target: Target, context: Context) -> float:
    """Seconds that the model saves with a target's options; 0 where the layout of images does not
    change, or its convolutions are few."""
    if target.mixes_layouts or not context.target.mixes_layouts:
        return 0.0
    terms = work_terms(model.nodes())
    convolutions = [n for n in terms if _copies(n)]
    of_all = sum(map(context.estimate, terms))
    if sum(map(context.estimate, convolutions)) < DOMINATE * of_all or any(map(_in_groups, terms)):
        return 0.0
    moved = sum(each for n in convolutions for each in _images(n, context.sizes))
    return (1 - STAY) * COPIES * moved / context.target.device.operator.bandwidth


def _copies(node: Node) -> bool:
    """Whether a term is a convolution of half precision over all channels, in the standard
    layout: those of single channels have no product."""
    known = isinstance(node.type, Tensor) and node.type.dtype in ("float16", "bfloat16") and traits(node).layout
    return known and get(node.op).domain in ("", "ai.onnx") and multiplies(node.op) and node.attr("group") == 1


def _in_groups(node: Node) -> bool:
    """Whether a term is a convolution in groups. With channels last, libraries compute these so
    slowly that a model with them gains nothing."""
    return traits(node).windowed and multiplies(node.op) and dict(node.attrs).get("group", 1) != 1


def _images(node: Node, sizes: Mapping[str, int]) -> Iterator[int]:
    """Bytes of the operands and the result of a convolution."""
    for image in (node.args[0], node):
        try:
            yield size(sized(image.tensor, sizes))
        except (LookupError, ArithmeticError):  # only a run can tell
            yield 0
