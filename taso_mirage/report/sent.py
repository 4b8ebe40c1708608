"""A result as bytes for another machine, which has the original and gets the written model as
files."""

from __future__ import annotations

import io
import pickle
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from taso_mirage.ir.model import Model
from taso_mirage.ir.terms import Node, topological
from taso_mirage.report.result import Result


def packed(result: Result) -> bytes:
    """The bytes of a result without its models, weights and cases of the check."""
    left_out: dict[str, Any] = {"original": None, "model": None, "weights": {}}
    left_out |= {"cases": (), "normal": None, "unfused": None, "written": ()}
    file = io.BytesIO()
    pickler = _Pickler(file)
    pickler.dump(replace(result, **left_out))
    return pickle.dumps((pickler.rows, file.getvalue()))


def unpacked(content: bytes, original: Model, model: Model) -> Result:
    """The result of `packed`, with the models as they were read here."""
    rows, body = pickle.loads(content)
    terms: list[Node] = []
    for op, args, attrs, type in rows:
        terms.append(Node(op, tuple([terms[i] for i in args]), attrs, type))
    found: Result = _Unpickler(io.BytesIO(body), terms).load()
    same: dict[str, Any] = {
        "sizes": original.sizes,
        "integers": original.integers,
        "rows": original.rows,
        "shares": original.shares,
        "scales": original.scales,
    }
    return replace(found, original=original, model=replace(model, **same))


class _Pickler(pickle.Pickler):
    """Puts terms into `rows`, operands first: pickle would recurse, and models are deep."""

    def __init__(self, file: io.BytesIO) -> None:
        super().__init__(file, pickle.HIGHEST_PROTOCOL)
        self.rows: list[tuple[Any, ...]] = []
        self._numbers: dict[Node, int] = {}

    def persistent_id(self, obj: Any) -> int | None:
        if not isinstance(obj, Node):
            return None
        if obj not in self._numbers:
            for term in topological([obj], self._numbers):
                self.rows.append((term.op, [self._numbers[each] for each in term.args], term.attrs, term.type))
                self._numbers[term] = len(self._numbers)
        return self._numbers[obj]


class _Unpickler(pickle.Unpickler):
    def __init__(self, file: io.BytesIO, terms: Sequence[Node]) -> None:
        super().__init__(file)
        self._terms = terms

    def persistent_load(self, pid: int) -> Node:
        return self._terms[pid]
