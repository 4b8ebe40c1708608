"""Products with a weight on a CPU: of floats (`linear.h`), and of few bits in blocks
(`block_linear.h`)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from taso_mirage.ir.dims import Dim, Symbolic, dim_product
from taso_mirage.ir.terms import ABSENT, Node
from taso_mirage.kernels.codegen.cpu.prepared import CpuProgram, InstanceClass
from taso_mirage.kernels.cpu.linear import NARROW_ROWS, followed_product, is_product, shared_operand, weight_products
from taso_mirage.kernels.form import Form, IsWanted, Users


def _linear(node: Node) -> tuple[Any, ...]:
    columns, most, parts = node.attr("block")
    rows = _rows(node)
    return most if isinstance(rows, Symbolic) else rows, *node.args[1].shape, columns, most, parts


def _rows(node: Node) -> Dim:
    return dim_product(node.shape[:-1])


def _of_blocks(node: Node) -> tuple[Any, ...]:
    x, codes, *_, zeros = (*node.args, ABSENT)[:6]
    columns, most, parts = node.attr("block")
    rows = _rows(node)
    sizes = most if isinstance(rows, Symbolic) else rows, x.shape[-1], codes.shape[0], columns, most, parts
    kind = "HALF_OF_ALL" if zeros is ABSENT else "WHOLE" if zeros.dtype == "uint8" else "FLOATING"
    return *sizes, node.attr("bits"), node.attr("block_size"), node.attr("digits"), kind


def _digits(node: Node) -> tuple[Dim, int, int]:
    """The rows of x that become digits where integers are multiplied, the bytes of a row's digits,
    and their bits: see `BlockLinear`."""
    size, most = node.attr("block_size"), node.attr("block")[1]
    bytes = int(node.args[1].shape[1]) * (32 + node.attr("digits") * size)
    return (_rows(node), bytes, node.attr("bits")) if most & (most - 1) == 0 else (0, 0, 0)


BLOCKS = InstanceClass(
    ("linear.h", "block_linear.h"),
    "BlockLinear",
    lambda n: n.attr("block")[0],
    lambda n: (),
    _of_blocks,
    lambda n: ("blocks", *n.attr("block")[:1]),
    lambda n: (isinstance(_rows(n), Symbolic),),
    lambda n: n.args[0].shape[-1:],
    rows=_rows,
    weights=(1, 4, 5),
    first=_digits,
)
FLOATS = InstanceClass(
    ("linear.h",),
    "Linear",
    lambda n: n.attr("block")[0],
    lambda n: (),
    _linear,
    lambda n: (n.attr("block")[0], n.attr("block")[1] == NARROW_ROWS),
    lambda n: (isinstance(_rows(n), Symbolic),),
    rows=_rows,
)


def _instance(node: Node) -> InstanceClass:
    """With scales its weights are blocks of few bits."""
    return BLOCKS if len(node.args) > 4 else FLOATS


def _members(node: Node, users: Users, wanted: IsWanted, sizes: Mapping[str, int]) -> list[Node]:
    return followed_product(node, users, wanted) if is_product(node, sizes) else []


FORM = Form(CpuProgram("linear", _instance), weight_products, _members, shared_operand)
