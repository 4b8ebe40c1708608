"""The two sides of a rule as ONNX models with the same inputs and outputs, at fixed sizes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from taso_mirage.errors import IllTyped, TasoMirageError, Undecidable, Unsupported
from taso_mirage.ir.dims import bind, fixed, symbols
from taso_mirage.ir.model import Model
from taso_mirage.ir.terms import LEAVES, Graph, Node, Tensor, substitute, topological, variable
from taso_mirage.onnx_io.build import standalone
from taso_mirage.operators.ops import get
from taso_mirage.rewriting.equation import instantiate
from taso_mirage.rewriting.library import Rule

NEWEST = 25
"""The newest opset that is tried; runtimes implement an opset some time after its publication."""
OLDEST = 13
TRIES = 400
WRITTEN = LEAVES | {"constant", "extents", "item", "absent"}
"""Terms that the writer writes itself, at every opset."""
_Terms = tuple[Node, ...]


@dataclass(frozen=True, slots=True)
class Pair:
    """Two models that compute the same results from the same inputs, and the terms from which they
    were made."""

    lhs: Model
    rhs: Model


def pair(rule: Rule, seed: int = 0) -> Pair:
    """A rule's two sides at the first legal small sizes of its typing.

    TasoMirageError if there are none.
    """
    for sizes in small_sizes(rule, seed):
        sides = rule_at_sizes(rule, sizes)
        if sides is not None:
            return models(*sides)
    raise IllTyped(
        f"{rule.name}: no sizes up to {max(SIZES)} of its typing fit both sides; `given` or the rule is wrong"
    )


SIZES = (2, 3, 4, 5, 6, 7, 8, 9, 10, 12)


def small_sizes(rule: Rule, seed: int = 0) -> Iterator[dict[str, int]]:
    """Small sizes for the letters of a rule's typing: first all different as far as possible, then
    any."""
    letters = sorted({s for _, type in rule.given for dim in type.shape or () for s in symbols(dim)})
    rng = np.random.default_rng(seed)
    for i in range(TRIES):
        different = i < TRIES // 2 and len(letters) <= len(SIZES)
        start = dict(zip(letters, SIZES, strict=False))
        drawn = rng.choice(SIZES, len(letters), replace=not different)
        yield start if i == 0 and different else {name: int(n) for name, n in zip(letters, drawn, strict=True)}


def rule_at_sizes(rule: Rule, sizes: Mapping[str, int]) -> tuple[_Terms, _Terms] | None:
    """The two sides as terms with every letter at its size; None where these sizes are not legal
    for the rule."""
    names = {name: fixed(value, sizes) for name, value in rule.attributes}
    for name, type in rule.given:
        shape = tuple(bind(d, dict(sizes)) for d in type.shape or ())
        if any(not isinstance(d, int) or d < 1 for d in shape):
            return None
        names[name] = rule.operand(name, Tensor(type.dtype, shape))
    like = next((type.dtype for _, type in rule.given), "float32")
    try:
        if rule.equation.where is not None and not rule.equation.where(names):
            return None
        lhs, rhs = (instantiate(side, names, like) for side in (rule.equation.lhs, rule.equation.rhs))
    except (IllTyped, Undecidable, LookupError, TypeError, ValueError):
        return None
    return (lhs, rhs) if all(a.type == b.type for a, b in zip(lhs, rhs, strict=True)) else None


def models(lhs: Sequence[Node], rhs: Sequence[Node]) -> Pair:
    """Two lists of typed terms over the same leaves as models; weights become inputs.

    Unsupported names the operators that ONNX has not.
    """
    leaves = {n: None for n in topological([*lhs, *rhs]) if n.op in ("input", "weight")}
    table = {n: variable(n.attr("name"), n.tensor) for n in leaves if n.op == "weight"}
    left, right = substitute(lhs, table), substitute(rhs, table)
    inputs = tuple(sorted((table.get(n, n) for n in leaves), key=lambda n: str(n.attr("name"))))
    opsets = {"": _opset([*left, *right]), "com.microsoft": 1}
    return Pair(standalone(Graph(inputs, left), opsets), standalone(Graph(inputs, right), opsets))


def _opset(outputs: Sequence[Node]) -> int:
    """The newest opset at which all terms can be written."""
    terms = [n for n in topological(outputs) if n.op not in WRITTEN]
    problem: TasoMirageError = Unsupported("no term has an ONNX operator")
    for opset in range(NEWEST, OLDEST - 1, -1):
        try:
            for node in terms:
                op = get(node.op)
                op.to_onnx(node, 1 if op.domain else opset)
            return opset
        except (Unsupported, IllTyped) as error:
            problem = error
    raise Unsupported(f"no opset from {OLDEST} to {NEWEST} has every operator: {problem}")
