"""Convolutions on a CPU by minimal filtering (`winograd.h`)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from taso_mirage.ir.dims import Symbolic
from taso_mirage.ir.terms import Node
from taso_mirage.kernels.codegen.cpu.prepared import CpuProgram, InstanceClass
from taso_mirage.kernels.cpu.convolutions import convolution, followed_convolution, is_convolution
from taso_mirage.kernels.form import Form, IsWanted, Users


def _winograd(node: Node) -> tuple[Any, ...]:
    x, w = node.args[:2]
    group, (top, left, *_) = node.attr("group"), node.attr("pads")
    data = (1 if isinstance(x.shape[0], Symbolic) else x.shape[0], group, w.shape[1], *x.shape[2:])
    return (
        *data,
        int(w.shape[0]) // group,
        *w.shape[2:],
        *node.shape[2:],
        top,
        left,
        *node.attr("tile"),
        *node.attr("block"),
    )


INSTANCE = InstanceClass(
    ("winograd.h",),
    "Winograd",
    lambda n: n.attr("block")[0],
    lambda n: n.attr("tile"),
    _winograd,
    lambda n: (*n.attr("tile"), n.attr("block")[0]),
    lambda n: (bool(n.attr("relu")),),
    lambda n: n.args[0].shape[1:],
    lambda n: n.shape[0] if isinstance(n.shape[0], Symbolic) else 1,
)


def _members(node: Node, users: Users, wanted: IsWanted, sizes: Mapping[str, int]) -> list[Node]:
    return followed_convolution(node, users, wanted) if is_convolution(node) else []


FORM = Form(CpuProgram("winograd", lambda node: INSTANCE), convolution, _members)
