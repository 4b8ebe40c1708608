"""Convolutions with their epilogues, as the terms that a GPU's kernels are found for."""

from __future__ import annotations

from typing import Any

from taso_mirage.forms.base.form import GPU_GOALS
from taso_mirage.forms.base.fused_convolution import FusedConvolution
from taso_mirage.ir.model import Model
from taso_mirage.ir.terms import Graph, Node, Tensor, variable
from taso_mirage.operators.ops import term
from taso_mirage.pipeline.fuse.form_terms import ModelInTerms, with_terms


def followed(
    kind: type[FusedConvolution], op: str, x: Node, w: Node, columns: int, follows: str, how: dict[str, Any]
) -> tuple[Node, Graph]:
    """The convolution of an image and weights, behind which come those of a bias, a scale of each
    channel, a sum and mish that `follows` names, and its goal in operators of ONNX."""
    shape = kind.alone(x, w, how).shape
    ones = (1,) * (len(shape) - 2)
    y = variable("y", Tensor(x.dtype, (1, *shape[1:])))
    leaves, operands, out = [y], [x, w], y
    for name, given, own in (
        ("bias", (1, columns, *ones), (1, columns, *ones)),
        ("scale", (columns, *ones), (columns, *ones)),
        ("sum", shape, (1, *shape[1:])),
    ):
        if name in follows:
            leaves.append(variable(name, Tensor(x.dtype, own)))
            operands.append(variable(name, Tensor(x.dtype, given)))
            out = term("mul" if name == "scale" else "add", out, leaves[-1])
    out = term("mish", out) if "mish" in follows else out
    node = term(op, *operands, body=Graph(tuple(leaves), (out,)), **how)
    return node, Graph(tuple(operands), (kind(node).operators(),))


def with_convolutions(model: Model) -> ModelInTerms:
    """A model with its convolutions as terms of the forms for GPUs."""
    return with_terms(model, GPU_GOALS.terms)
