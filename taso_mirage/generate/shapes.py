"""Sizes as expressions over the dims of a rule's variables: `c*h` becomes `dim(x, 1) * dim(x,
2)`."""

from __future__ import annotations

import ast
from collections.abc import Mapping
from typing import Any

from taso_mirage.ir.dims import Symbolic, symbols
from taso_mirage.operators.expressions import Expr


def in_dims(value: Any, places: Mapping[str, str]) -> Expr | None:
    """An attribute's value as an expression, given where sizes are: `c*h` is "dim(x, 1)".

    None where a letter is nowhere.
    """
    parts = [_size(v, places) for v in (value if isinstance(value, tuple) else (value,))]
    known = [p for p in parts if p is not None]
    if len(known) < len(parts):
        return None
    return Expr(f"({', '.join(known)}{',' if len(known) == 1 else ''})" if isinstance(value, tuple) else known[0])


def _size(dim: Any, places: Mapping[str, str]) -> str | None:
    if not isinstance(dim, Symbolic):
        return repr(dim)
    if str(dim) in places:
        return places[str(dim)]
    if symbols(dim) - places.keys():
        return None
    return ast.unparse(_Places(places).visit(ast.parse(str(dim), mode="eval").body))


class _Places(ast.NodeTransformer):
    """Letters become what they are the sizes of."""

    def __init__(self, places: Mapping[str, str]) -> None:
        self.places = places

    def visit_Name(self, node: ast.Name) -> ast.expr:
        return ast.parse(self.places[node.id], mode="eval").body
