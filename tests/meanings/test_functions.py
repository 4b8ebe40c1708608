"""A scalar function is one record: declared here, and nowhere else, it is typed, fingerprinted,
proved, searched and compiled."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import interpreter
import mugraphs
import numpy as np
import pytest

from taso_mirage.emit import triton
from taso_mirage.emit.cpp import generate_cpp
from taso_mirage.emit.cpu.native_kernel import NativeKernel
from taso_mirage.ir.terms import Graph, Node, Tensor, variable
from taso_mirage.meanings.field import Field, agree
from taso_mirage.meanings.functions import SCALAR_FUNCTIONS, Fact, Function, declare_function, function_of, record
from taso_mirage.meanings.reals import EXACT
from taso_mirage.meanings.residues import exact
from taso_mirage.mugraph.graph import new_graph
from taso_mirage.operators.interpret import interpret, interpret_term
from taso_mirage.operators.ops import REGISTRY, load_specs, op, term
from taso_mirage.prove.axioms import AXIOMS
from taso_mirage.prove.symbolic import Proved, prove_symbolic

RUN = """
import importlib.util, sys, numpy, torch
spec = importlib.util.spec_from_file_location("made", sys.argv[1])
module = importlib.util.module_from_spec(spec)
spec.loader.exec_module(module)
numpy.save(sys.argv[3], module.launch(torch.from_numpy(numpy.load(sys.argv[2]))).numpy())
"""


@pytest.fixture(autouse=True)
def declared() -> Iterator[None]:
    """Two functions, one that the field does not know, and one that it does.

    Each is one record, and an operator that maps it.
    """
    load_specs()
    bell = Function(
        "bell",
        lambda x: np.exp(-x * x),
        facts=(Fact("even", "f(-x) == f(x)"), Fact("bounded", "-1 <= f(x) <= 1")),
        cpp="exponential(-({0} * {0}))",
        triton="tl.exp(-({0} * {0}))",
        dear=True,
    )
    cube = Function(
        "cube",
        lambda x: x * x * x,
        field=exact(lambda a: a * a * a),
        normal=lambda algebra, a: algebra.power(a, 3),
        cpp="{0} * {0} * {0}",
        triton="{0} * {0} * {0}",
    )
    for each in (bell, cube):
        declare_function(each)
        op()(_mapping(each))
    yield
    for each in (bell, cube):
        del record._DECLARED[each.name], record._BY_REAL[each.real], REGISTRY[each.name]


def _mapping(function: Function) -> Any:
    def body(xp, x):
        return xp.map(function, x)

    body.__name__ = function.name
    return body


def mugraph() -> tuple[Graph, Graph]:
    """bell(x) + cube(x), two rows a block."""
    x = mugraphs.leaf("X", "float32", 6, 5)

    def body(t: Node) -> Node:
        return term("add", term("bell", t), term("cube", t))

    made = mugraphs.kernel([(x, (0,), -1)], body, (3,), 1, (0,))
    return Graph((x,), (made,)), Graph((x,), (body(x),))


def wanted(goal: Graph, value: np.ndarray) -> np.ndarray:
    found: np.ndarray = interpret(goal.outputs, EXACT, {goal.inputs[0]: EXACT.load(value)})[goal.outputs[0]]
    return found


def test_it_has_a_type() -> None:
    assert term("bell", variable("x", Tensor("float16", (2, 3)))).type == Tensor("float16", (2, 3))


def test_the_field_has_an_oracle_or_what_the_record_says() -> None:
    xp = Field(8)
    x, y = (xp.fresh(Tensor("float32", (3,))) for _ in range(2))
    leaf = variable("x", Tensor("float32", (3,)))
    bell, cube, tanh = (lambda v, n=n: interpret_term(term(n, leaf), xp, [v]) for n in ("bell", "cube", "tanh"))
    assert agree(bell(x), bell(x))
    assert not agree(bell(x), bell(y))
    assert not agree(bell(x), tanh(x))
    assert agree(cube(x), xp.mul(xp.mul(x, x), x))
    assert agree(cube(xp.mul(x, y)), xp.mul(cube(x), cube(y)))


def test_proofs_use_its_facts_and_its_normal_form() -> None:
    x = variable("x", Tensor("float32", (3,)))
    opposite = term("neg", x)
    assert isinstance(prove_symbolic((term("bell", opposite),), (term("bell", x),)), Proved)
    assert isinstance(prove_symbolic((term("cube", opposite),), (term("neg", term("cube", x)),)), Proved)
    assert isinstance(prove_symbolic((term("cube", x),), (term("mul", term("mul", x, x), x),)), Proved)
    assert not isinstance(prove_symbolic((term("bell", opposite),), (term("neg", term("bell", x)),)), Proved)


def test_c_computes_it() -> None:
    graph, goal = mugraph()
    assert "exponential(-(v0 * v0))" in generate_cpp(graph)
    value = np.random.default_rng(0).standard_normal((6, 5)).astype(np.float32)
    np.testing.assert_allclose(NativeKernel(graph)(value)[0], wanted(goal, value), rtol=1e-5, atol=1e-6)


def test_triton_computes_it(tmp_path: Path) -> None:
    pytest.importorskip("triton", reason="the extra `triton` is not installed")
    graph, goal = mugraph()
    source = triton.program(graph).source
    assert "tl.exp(-(X_tile * X_tile))" in source
    value = np.random.default_rng(0).standard_normal((6, 5)).astype(np.float32)
    (tmp_path / "made.py").write_text(source)
    np.save(tmp_path / "given.npy", value)
    paths = [str(tmp_path / name) for name in ("made.py", "given.npy", "found.npy")]
    interpreter.run(RUN, *paths).check_returncode()
    np.testing.assert_allclose(np.load(paths[2]), wanted(goal, value), rtol=1e-5, atol=1e-6)


def test_the_search_takes_it() -> None:
    graph = new_graph()
    x, w = graph.new_input(dims=(8, 64), name="X"), graph.new_input(dims=(64, 32), name="W")
    graph.mark_output(graph.matmul(term("bell", x), w))
    found = graph.superoptimize(best=1, budget=30)
    assert "tl.exp(-" in found[0].program().source


def test_every_record_is_found_by_what_definitions_map() -> None:
    for name, each in SCALAR_FUNCTIONS.items():
        assert function_of(each) is function_of(each.real) is each
        assert each.name == name
    assert function_of(np.arccos).name == "arccos"
    assert function_of(np.arccos) is function_of(np.arccos)


def test_two_functions_have_two_names() -> None:
    with pytest.raises(ValueError, match="two scalar functions are called exp"):
        declare_function(Function("exp", np.exp2))
    assert len({(a.function, a.statement) for a in AXIOMS}) == len(AXIOMS)
