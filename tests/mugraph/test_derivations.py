"""A derivation kind is one object: no module of the kernel search tells kinds or operators by
names.

A new reduction is one object more.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence
from graphlib import TopologicalSorter
from pathlib import Path

import numpy as np
import pytest
from sources import nodes, parsed

from taso_mirage.errors import Unsupported
from taso_mirage.ir.mugraph import kernels
from taso_mirage.ir.terms import Graph, Node, Tensor, topological, variable
from taso_mirage.meanings.reals import EXACT
from taso_mirage.mugraph.derivations import reductions
from taso_mirage.mugraph.derivations.kind import DerivationEdge
from taso_mirage.mugraph.derivations.overflow import OverflowEffect, Signs
from taso_mirage.mugraph.derivations.reductions import FoldKind
from taso_mirage.mugraph.found import FoundMuGraph
from taso_mirage.mugraph.search import superoptimize
from taso_mirage.mugraph.verification import SINGLE, verified_mugraph
from taso_mirage.operators.interpret import interpret
from taso_mirage.operators.ops import load_specs, term

FOLDER = Path(reductions.__file__).parent.parent
LEAVES = {"opaque", "weight"}
"""Terms that are no operators."""
TOLD = frozenset({"op", "kind", "name", "form"})
"""Attributes that tell an operator, a term, an atom or a derivation from others."""


# ---------------------------------------------------------------- nothing is named


def texts(node: ast.AST) -> list[str]:
    """The strings that a comparison may be with: one, or those of a collection."""
    if isinstance(node, ast.Dict):
        return [text for key in node.keys if key is not None for text in texts(key)]
    inner = node.elts if isinstance(node, ast.Tuple | ast.List | ast.Set) else [node]
    return [each.value for each in inner if isinstance(each, ast.Constant) and isinstance(each.value, str)]


def told(node: ast.AST) -> bool:
    """Whether an expression is the name of something."""
    return (isinstance(node, ast.Attribute) and node.attr in TOLD) or (isinstance(node, ast.Name) and node.id == "op")


def compared(tree: ast.AST) -> Iterator[int]:
    """The lines in which a name is compared with strings, or looked up in a table of them."""
    operators = load_specs().keys()
    for node in ast.walk(tree):
        if isinstance(node, ast.Compare):
            sides = [node.left, *node.comparators]
            found = {text for side in sides for text in texts(side)} - LEAVES
            if (found and any(map(told, sides))) or not operators.isdisjoint(found):
                yield node.lineno
        elif isinstance(node, ast.Match) and told(node.subject):
            yield node.lineno
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and any(map(told, node.args)):
            if node.func.attr in ("startswith", "endswith", "get") and not isinstance(node.func.value, ast.Name):
                yield node.lineno
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and told(node.func.value):
            yield from [node.lineno] if node.func.attr in ("startswith", "endswith", "removesuffix", "rstrip") else []


def listed(tree: ast.AST) -> Iterator[int]:
    """The lines in which a collection lists operators by their names."""
    operators = load_specs().keys()
    for node in ast.walk(tree):
        if isinstance(node, ast.Tuple | ast.List | ast.Set | ast.Dict):
            size = len(node.keys if isinstance(node, ast.Dict) else node.elts)
            found = texts(node)
            if size > 1 and len(found) == size and operators >= set(found):
                yield node.lineno


@pytest.mark.parametrize(
    ("source", "found"),
    [
        ('edge.op == "sum"', True),
        ('edge.kind.name in ("sum", "mean")', True),
        ('"max" != node.op', True),
        ('op not in {"add"}', True),
        ('atom.name.endswith("!")', True),
        ('{"mul": 1}.get(term.op)', True),
        ('match node.op:\n    case "add":\n        pass', True),
        ('called == "matmul"', True),
        ("edge.kind is SUM", False),
        ("node.op in LEAVES", False),
        ('node.dtype == "bool"', False),
    ],
)
def test_comparisons_are_seen(source: str, found: bool) -> None:
    assert bool(list(compared(ast.parse(source)))) is found


@pytest.mark.parametrize(
    ("source", "found"),
    [('{"add", "mul"}', True), ('{"add": f, "exp": g}', True), ('("float16", "float32")', False)],
)
def test_lists_are_seen(source: str, found: bool) -> None:
    assert bool(list(listed(ast.parse(source)))) is found


@pytest.mark.lint("taso_mirage")
@pytest.mark.parametrize("seen", [compared, listed])
def test_no_module_tells_kinds_or_operators_by_their_names(seen: object) -> None:
    assert callable(seen)
    found = [
        f"{file.relative_to(FOLDER)}:{line}" for file in sorted(FOLDER.rglob("*.py")) for line in seen(parsed(file))
    ]
    assert found == []


@pytest.mark.lint("taso_mirage")
def test_modules_import_each_other_one_way() -> None:
    """Types count, too: a circle of them is hidden from Python alone."""
    needs: dict[str, set[str]] = {}
    for file in FOLDER.rglob("*.py"):
        own = ".".join(("taso_mirage", "mugraph", *file.relative_to(FOLDER).with_suffix("").parts))
        needs[own.removesuffix(".__init__")] = {
            n.module for n in nodes(file) if isinstance(n, ast.ImportFrom) and n.module
        }
    assert list(TopologicalSorter({own: others & needs.keys() for own, others in needs.items()}).static_order())


# ---------------------------------------------------------------- one object more


class Product(FoldKind):
    """No accumulator multiplies, so no loop may cut its label."""

    __slots__ = ()
    name, fold, operator = "product", np.multiply, "reduce_prod"

    def signs(self, edge: DerivationEdge, below: Sequence[OverflowEffect]) -> Signs:
        return below[0].positive, False


X, Y = variable("x", Tensor("float32", (16, 1, 1024))), variable("y", Tensor("float32", (1, 32, 1024)))
SHORT = variable("s", Tensor("float32", (64, 24)))
ROW = variable("r", Tensor("float32", (64, 1)))
PRODUCT = Graph((SHORT, ROW), (term("div", term("reduce_prod", SHORT, axes=(1,), keepdims=1), ROW),))
LEAST = Graph((X, Y), (term("reduce_min", term("add", X, Y), axes=(2,), keepdims=0),))


def operators(kernel: Node) -> set[str]:
    return {node.op for node in topological(kernel.attr("body").outputs)}


def assert_right(found: list[FoundMuGraph]) -> None:
    """At the goal's own sizes, in the field and in numbers."""
    rng = np.random.default_rng(0)
    for each in found:
        assert each.evidence.tests >= 8
        values = {n: rng.normal(size=n.shape).astype(np.float32) for n in each.goal.inputs}
        wanted, ours = (
            interpret(graph.outputs, xp, {n: xp.load(v) for n, v in values.items()})[graph.outputs[0]]
            for graph, xp in ((each.goal, EXACT), (each.graph, SINGLE))
        )
        assert np.abs(ours - wanted).max() <= 1e-5 * np.abs(wanted).max()


def test_without_its_object_there_is_no_kernel() -> None:
    with pytest.raises(Unsupported, match="a fold of multiply"):
        superoptimize(PRODUCT, best=1)


def test_a_product_is_one_object(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reductions, "REDUCTIONS", [*reductions.REDUCTIONS, Product()])
    found = superoptimize(PRODUCT, best=3)
    assert len(found) == 3
    assert all("reduce_prod" in operators(kernels(each.graph.outputs)[0]) for each in found)
    assert {k.attr("loop") for each in found for k in kernels(each.graph.outputs)} == {1}
    assert_right(found)
    assert verified_mugraph(found[0].graph, PRODUCT)


def test_a_least_sum_loops() -> None:
    """The product of matrices in which sums are minima and products are sums: in a loop a minimum
    is the maximum of the negated values."""
    found = superoptimize(LEAST, best=24)
    looped = [k for each in found for k in kernels(each.graph.outputs) if k.attr("loop") > 1]
    assert looped
    assert all({"accumulate", "neg"} <= operators(k) for k in looped if "add" in operators(k))
    assert_right(found)
