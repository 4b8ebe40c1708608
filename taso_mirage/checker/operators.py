"""The operators as the checker reads them in ONNX, by name: every element of a result at a symbolic
index."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from taso_mirage.checker.attention import ATTENTION
from taso_mirage.checker.casts import CASTS
from taso_mirage.checker.elementwise import ELEMENTWISE
from taso_mirage.checker.forms import need
from taso_mirage.checker.moves import MOVES
from taso_mirage.checker.norms import NORMS
from taso_mirage.checker.products import PRODUCTS
from taso_mirage.checker.quantized import QUANTIZED


def item(ts: Any, *, index: int) -> Any:
    """One of several results."""
    need(isinstance(ts, tuple) and 0 <= index < len(ts), "no such part")
    return ts[index]


OPS: dict[str, Callable[..., Any]] = {
    **ELEMENTWISE,
    **CASTS,
    **MOVES,
    **NORMS,
    **PRODUCTS,
    **ATTENTION,
    **QUANTIZED,
    "item": item,
}
