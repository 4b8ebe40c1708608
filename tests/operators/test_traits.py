"""Operators state their traits: no module names one, and a new operator is one file."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path

import numpy as np
import pytest
from fuzzed import fuzz
from operator_uses import build, uses
from partial_programs import differing, graph, image, kernel
from sources import nodes

from taso_mirage.ir.dims import symbol
from taso_mirage.ir.model import StoredWeight
from taso_mirage.ir.terms import KINDS, Tensor, topological, weight
from taso_mirage.meanings.reals import REALS
from taso_mirage.onnx_io.build import standalone
from taso_mirage.operators.interpret import interpret
from taso_mirage.operators.ops import REGISTRY, Op, get, load_specs, term
from taso_mirage.operators.slicing import cut
from taso_mirage.prove.rules.attributes import DRAWN
from taso_mirage.prove.rules.fuzz import typings
from taso_mirage.rewriting.derived_traits import elementwise, multiplies, selects
from taso_mirage.rewriting.text import parse_equation
from taso_mirage.search.partial.agreement import agreement
from taso_mirage.search.partial.families import families, mutants_of
from taso_mirage.search.partial.restrict import Restriction
from taso_mirage.search.partial.source import programs
from taso_mirage.search.partial.whole import Total, total
from taso_mirage.search.weights import fold_weights

PACKAGE = Path(__file__).parents[2] / "taso_mirage"
NAMES = frozenset(load_specs()) - KINDS
STEMS = [[name] for name in NAMES]
Found = tuple[int, str]
"""A line and the name of an operator there."""

# ---------------------------------------------------------------- no module names an operator


def named(every: Sequence[ast.AST]) -> list[Found]:
    """Where a module, given by its nodes, compares an operator's name with a string, matches it, or
    lists names."""
    found = [*_compared(every), *_matched(every), *_searched(every), *_listed(every)]
    return sorted(set(found))


def _compared(every: Sequence[ast.AST]) -> Iterator[Found]:
    for node in every:
        if isinstance(node, ast.Compare) and _speaks_of_operators(node):
            yield from _names(node)


def _matched(every: Sequence[ast.AST]) -> Iterator[Found]:
    for node in every:
        if isinstance(node, ast.Match) and _speaks_of_operators(node.subject):
            for case in node.cases:
                yield from _names(case.pattern)


def _searched(every: Sequence[ast.AST]) -> Iterator[Found]:
    """`node.op.startswith(...)` and the like."""
    for node in every:
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and _is_operator(node.func.value):
            yield from ((n.lineno, n.value) for n in _strings(node))


def _listed(every: Sequence[ast.AST]) -> Iterator[Found]:
    """Collections of names and of nothing else: of two or more, or a set; also as one text."""
    apart = {e for n in every if isinstance(n, ast.Compare) and not _speaks_of_operators(n) for e in ast.walk(n)}
    words = {n.func.value for n in every if isinstance(n, ast.Call) and isinstance(n.func, ast.Attribute)}
    for node in (n for n in every if n not in apart):
        if isinstance(node, ast.Dict):
            found = [k for k in node.keys if isinstance(k, ast.Constant)]
            yield from ((k.lineno, str(k.value).split(".")[0]) for k in found if str(k.value).split(".")[:-1] in STEMS)
        elif isinstance(node, ast.List | ast.Tuple | ast.Set):
            found = [e for e in node.elts if isinstance(e, ast.Constant)]
        elif isinstance(node, ast.Constant) and node in words and isinstance(node.value, str):
            found = [ast.Constant(word, lineno=node.lineno) for word in node.value.split()]
        else:
            continue
        texts = [e.value for e in found]
        least = 1 if isinstance(node, ast.Set) else 2
        if len(texts) >= least and all(t in NAMES | KINDS for t in texts):
            yield from ((e.lineno, e.value) for e in found if e.value in NAMES)


def _speaks_of_operators(tree: ast.AST) -> bool:
    return any(_is_operator(node) for node in ast.walk(tree))


def _is_operator(node: ast.AST) -> bool:
    """`node.op`, a variable `op`, or the name of an operator's definition."""
    if isinstance(node, ast.Attribute) and node.attr == "name":
        return _is_operator(node.value)
    return (isinstance(node, ast.Attribute) and node.attr == "op") or (isinstance(node, ast.Name) and node.id == "op")


def _names(tree: ast.AST) -> Iterator[Found]:
    yield from ((n.lineno, n.value) for n in _strings(tree) if n.value in NAMES)


def _strings(tree: ast.AST) -> Iterator[ast.Constant]:
    yield from (n for n in ast.walk(tree) if isinstance(n, ast.Constant) and isinstance(n.value, str))


ELSEWHERE = {
    "checker": "its own reading of ONNX's operators, which shares nothing with theirs on purpose",
    "prove": "the names are those of scalar functions, which its axioms are about",
    "meanings": "the names are those of scalar functions, which lie below operators",
    "forms": "a form names the operators that it serves",
}
"""Packages that may name operators, and why."""
UNDER = ("prove", "rules"), ("forms", "base")
"""Folders of these that may not."""
OWN = {
    "ir/mugraph.py": {"accumulate", "combine", "kernel", "running_max"},
    "report/leftover.py": {"conv", "gemm", "matmul"},
    "devices/cpu/device.py": {"skip_layer_norm", "skip_layer_norm_sum", "skip_rms_norm", "skip_rms_norm_sum"},
    "torch/precision.py": {"conv", "matmul", "rnn"},
}
"""The parts of a muGraph's body besides operators, as `KINDS` has them for a term; words of a
report; facts about a runtime's kernels, each by its operator; names of PyTorch's settings."""


@pytest.mark.lint("taso_mirage", "op_specs")
def test_no_module_names_an_operator() -> None:
    wrong = []
    for file in sorted(PACKAGE.rglob("*.py")):
        where = file.relative_to(PACKAGE)
        if where.parts[0] not in ELSEWHERE or where.parts[:2] in UNDER:
            found = [(line, name) for line, name in named(nodes(file)) if name not in OWN.get(str(where), ())]
            wrong += [f"{where}:{line} names {name}; a trait would say what is asked of it" for line, name in found]
    assert wrong == []


@pytest.mark.lint("taso_mirage", "op_specs")
def test_what_may_name_operators_is_there() -> None:
    assert all((PACKAGE / name).is_dir() for name in ELSEWHERE)
    assert all(names == {n for _, n in named(nodes(PACKAGE / file))} for file, names in OWN.items())


NAMING = """
COSTLY = frozenset({"conv"})
LAYOUT = "conv max_pool".split()
RULES = {"add": 1, "neg": 2}
DRAWN = {"axis": 1, "softmax.axis": 2}
a = node.op == "conv" or get(node.op).name != "matmul"
b = node.op in (*LEAVES, "constant", "split") or op.startswith("reduce")
match node.op:
    case "slice" | "pad":
        pass
"""
NOT_NAMING = """
KNOWN = frozenset({"constant", "extents"})
c = fn == "max" or a.kind in ("exp", "sqrt") or key == "split"
d = term("concat", x, y, axis=1), get("item").term(x), node.op in KNOWN, x == "conv.h"
e = node.op == "item", {"where": guard, "name": "add"}
"""


def test_names_are_found_where_they_decide() -> None:
    found = [name for _, name in named([*ast.walk(ast.parse(NAMING))])]
    assert found == "conv conv max_pool add neg softmax conv matmul reduce split pad slice".split()
    assert named([*ast.walk(ast.parse(NOT_NAMING))]) == []


# ---------------------------------------------------------------- traits fit their operators


@pytest.mark.parametrize("op", load_specs().values(), ids=lambda op: op.name)
def test_traits_speak_of_what_the_operator_has(op: Op) -> None:
    traits, attributes = op.traits, op.attributes.keys()
    windows = {"strides", "pads", "dilations"} if traits.windowed else set()
    sizes = {"kernel"} if traits.windowed and traits.kernel is None else set()
    said = {name for name in (traits.joins, traits.parts) if name is not None}
    assert windows | sizes | said | traits.domains.keys() <= attributes
    assert traits.kernel is None or traits.kernel < len(op.operands)
    assert all(callable(domain) or domain in DRAWN for domain in traits.domains.values())
    assert traits.resize is None or op.sized


def test_families_of_mutants_have_names_of_their_own() -> None:
    assert len(families()) == sum(len(op.traits.families) for op in load_specs().values())


# ---------------------------------------------------------------- derived traits


def test_what_is_elementwise_is_read_off_the_definitions() -> None:
    found = {name for name in load_specs() if elementwise(name)}
    assert found >= set("add div neg cast where relu clip gelu hard_swish equal sum pow isnan".split())
    others = "expand prelu softmax transpose cumsum reduce_sum conv concat shape_of constant kernel layer_norm item"
    assert not found & set(others.split())


def test_what_multiplies_is_read_off_the_definitions() -> None:
    found = {name for name in load_specs() if multiplies(name)}
    assert found >= set("conv conv_transpose nhwc_conv matmul gemm einsum attention linear winograd".split())
    assert not found & set("add mul reduce_sum average_pool pad softmax item constant".split())


def test_what_computes_nothing_is_read_off_the_definitions() -> None:
    found = {name for name in load_specs() if selects(name)}
    assert found >= set("where reshape transpose slice concat split pad expand gather tile depth_to_space".split())
    assert not found & set("add relu cast max reduce_max max_pool equal item".split())


@pytest.mark.parametrize(("op", "i"), [u for u in uses() if elementwise(u.values[0].name)])
def test_a_part_of_an_elementwise_operator_is_it_of_the_parts(op: Op, i: int) -> None:
    use = build(op, i)
    (output,) = use.outputs
    box = tuple((int(n) // 2, int(n)) for n in output.shape)
    whole, part = interpret([output, Restriction()(output, box)], REALS, use.values).values()
    np.testing.assert_array_equal(whole[tuple(slice(*interval) for interval in box)], part)


# ---------------------------------------------------------------- a new operator is one file

SPEC = '''
"""Some number of times a convolution, with its sign turned."""

from op_specs.conv import seen
from taso_mirage.operators.slicing import cut, join, padded_term as padded, sizes, whole
from taso_mirage.errors import Unsupported
from taso_mirage.operators.ops import Ints, op


@op(windowed=True, kernel=1)
def turned_conv(xp, x, w, *, strides: Ints, pads: Ints, dilations: Ints, gain: int = 1, group: int = 1):
    """(n,g*c,h,w), (g*o,c,i,j) -> (n,g*o,h',w'): -`gain` times a convolution"""
    spatial = xp.rank(x) - 2
    padded = xp.pad(x, (0, 0, *pads[:spatial]), (0, 0, *pads[spatial:]))
    views = xp.window(padded, range(2, spatial + 2), xp.shape(w)[2:], strides, dilations)
    n, c, *rest = xp.shape(views)
    o, *own = xp.shape(w)
    views = xp.reshape(views, (n, group, c // group, *rest))
    at, kernel = "xyz"[:spatial], "ijk"[:spatial]
    weights = xp.reshape(w, (group, o // group, *own))
    total = xp.contract(f"ngc{at}{kernel},goc{kernel}->ngo{at}", views, weights)
    return xp.mul(xp.reshape(total, (n, o, *rest[:spatial])), xp.literal(-gain, x))


@turned_conv.traits.restriction
def _(inner, node, box):
    (x, w), groups = node.args, node.attr("group")
    if box[1] != (0, sizes(node)[1]):
        raise Unsupported("turned_conv has no restriction to some channels")
    around, low, high = seen(node, box, sizes(w)[2:])
    part = padded(inner(x, (box[0], whole(x)[1], *around)), (0, 0, *low), (0, 0, *high))
    return turned_conv.term(part, w, **{**dict(node.attrs), "pads": (0,) * len(node.attr("pads"))})


@turned_conv.traits.mutant("halves of an image")
def _(node):
    """The upper and the lower half, each with pads of its own: wrong at the seam."""
    x, w = node.args
    half = sizes(x)[2] // 2
    halves = [cut(x, (*whole(x)[:2], rows, *whole(x)[3:])) for rows in ((0, half), (half, 2 * half))]
    yield join([turned_conv.term(each, w, **dict(node.attrs)) for each in halves], 2)


turned_conv.example("float32[2,3,5,5]", "float32[4,3,3,3]", strides=(1, 1), pads=(1, 1, 1, 1), dilations=(1, 1), gain=3)
turned_conv.laws("""
    turned_conv(add(x, y), w, **a) == add(turned_conv(x, w, **a), turned_conv(y, w, **a))  where shape(x) == shape(y)
    turned_conv(x, w, group=1, **a) == neg(turned_conv(x, neg(w), group=1, **a))
""")


@turned_conv.traits.domain("gain")
def _(site):
    return site.rng.choice((2, 5))
'''


@pytest.fixture(scope="module")
def turned(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Op]:
    """A new operator, from a file like those of `op_specs/`; gone after the tests."""
    file = tmp_path_factory.mktemp("op_specs") / "turned_conv.py"
    file.write_text(SPEC)
    load_specs()
    spec = spec_from_file_location("op_specs.turned_conv", file)
    assert spec is not None
    assert spec.loader is not None
    spec.loader.exec_module(module_from_spec(spec))
    yield get("turned_conv")
    del REGISTRY["turned_conv"]


ATTRIBUTES = {"strides": (1, 1), "pads": (1,) * 4, "dilations": (1, 1), "gain": 2, "group": 2}
N, C, H, K, M = map(symbol, "nchkm")
IMAGES, KERNEL = Tensor("float32", (N, 2 * C, H, K)), Tensor("float32", (2 * M, C, 3, 3))


def test_its_attributes_are_drawn(turned: Op) -> None:
    equation = parse_equation(turned.law_texts[0])
    given = [("a", tuple(sorted(ATTRIBUTES.items())))]
    found = [
        n
        for t in typings(equation, 0, 1500, (("x", IMAGES), ("y", IMAGES), ("w", KERNEL)), given)
        for n in t.lhs
        if n.op == turned.name
    ]
    drawn = {name: {n.attr(name) for n in found} for name in ATTRIBUTES}
    assert drawn["gain"] == {2, 5}, "its own domain"
    assert {1, 2, 3} <= {s for each in drawn["strides"] for s in each}
    assert max(drawn["group"]) > 2, "what the shapes of data and kernel ask for"
    assert {n.tensor.rank for n in found} > {3, 4}, "images over one axis less"
    assert (
        fuzz(equation, 20, 0, 400, given=(("x", IMAGES), ("y", IMAGES), ("w", KERNEL)), attributes=given).counterexample
        is None
    )


def test_a_wrong_law_of_it_is_refuted(turned: Op) -> None:
    wrong = parse_equation("turned_conv(x, neg(w), **a) == turned_conv(x, w, **a)")
    given = [("a", tuple(sorted(ATTRIBUTES.items())))]
    assert fuzz(wrong, 20, 0, 400, given=(("x", IMAGES), ("w", KERNEL)), attributes=given).counterexample is not None


def test_a_part_of_it_is_computed_alone(turned: Op) -> None:
    output = turned.term(image(2, 4, 7, 6), kernel(6, 2, 3, 3), **{**ATTRIBUTES, "strides": (2, 1)})
    box = ((1, 2), (0, 6), (1, 3), (2, 5))
    found = Restriction()(output, box)
    assert {n.args[0].op for n in topological([found]) if n.op == turned.name} == {"slice"}
    assert not differing(graph(cut(output, box)), graph(found), 1).any()


def test_it_has_mutants_that_are_made_whole(turned: Op) -> None:
    original = graph(turned.term(image(1, 4, 8, 6), kernel(6, 2, 3, 3), **ATTRIBUTES))
    assert [p.outputs[0].op for p in programs(original.outputs)] == [turned.name]
    (found,) = mutants_of(original)
    assert found.families == ("halves of an image",)
    assert agreement(original, found.graph).regions[0].share == 6 / 8
    assert isinstance(total(original, found.graph), Total)


def test_its_kernel_is_computed_before_the_run(turned: Op) -> None:
    """The kernel is stored in any way: here it is one number everywhere."""
    one = weight("w", Tensor("float32", (1,)))
    output = turned.term(image(1, 256, 4, 4), term("expand", one, shape=(256, 256, 3, 3)), **{**ATTRIBUTES, "group": 1})
    model = standalone(graph(output), {"": 20}, {"w": StoredWeight(np.ones(1, np.float32))})
    folded, _ = fold_weights(model)
    assert [n.shape for n in folded.nodes() if n.op == "weight"] == [(256, 256, 3, 3)]
