"""A variance in one pass: the accumulator, its code for both back ends, and the muGraphs of layer
norms that need it."""

from __future__ import annotations

from pathlib import Path

import interpreter
import mugraphs
import numpy as np
import pytest
from small_goals import layer_norm_goal

from taso_mirage.emit.cpu.native_kernel import NativeKernel
from taso_mirage.ir.terms import Graph, Node, constant, topological
from taso_mirage.meanings.reals import EXACT
from taso_mirage.mugraph.found import FoundMuGraph
from taso_mirage.mugraph.search import Search, SearchOptions
from taso_mirage.mugraph.verification import SINGLE, verified_mugraph
from taso_mirage.operators.interpret import interpret
from taso_mirage.operators.ops import term
from taso_mirage.verdicts import Evidence, Failure

FAR = 1e3
"""A mean so large that the mean of the squares less its square has no correct digit left in
float32."""


def statistics(x: Node) -> tuple[Node, Node]:
    """The variance and the mean along the last axis."""
    mean = term("reduce_mean", x, axes=(1,))
    apart = term("sub", x, mean)
    return term("reduce_mean", term("mul", apart, apart), axes=(1,)), mean


def one_pass(loop: int = 4) -> tuple[Graph, Graph]:
    """Rows in blocks, a loop along them."""
    x = mugraphs.leaf("x", "float32", 6, 24)
    made = mugraphs.kernel(
        [(x, (0,), 1)], lambda t: term("accumulate", *statistics(t), over="variance"), (3,), loop, (0,)
    )
    return Graph((x,), (made,)), Graph((x,), (statistics(x)[0],))


def far() -> np.ndarray:
    return (FAR + np.random.default_rng(0).normal(size=(6, 24))).astype(np.float32)


def wanted() -> np.ndarray:
    return far().astype(np.float64).var(axis=1, keepdims=True)


@pytest.mark.parametrize("loop", [1, 2, 4, 12])
def test_the_accumulator_is_the_variance(loop: int) -> None:
    mugraph, goal = one_pass(loop)
    assert isinstance(verified_mugraph(mugraph, goal), Evidence)
    (x,), (output,) = mugraph.inputs, mugraph.outputs
    for xp, tolerance in ((SINGLE, 1e-4), (EXACT, 1e-9)):
        found = interpret([output], xp, {x: xp.load(far())})[output]
        assert np.abs(found - wanted()).max() <= tolerance


def test_squares_less_the_square_are_refused() -> None:
    x = mugraphs.leaf("x", "float32", 6, 24)

    def body(t: Node) -> Node:
        squares, mean = (
            term("div", term("accumulate", term("reduce_sum", y, axes=(1,))), constant(24.0, "float32"))
            for y in (term("mul", t, t), t)
        )
        return term("sub", squares, term("mul", mean, mean))

    made = mugraphs.kernel([(x, (0,), 1)], body, (3,), 4, (0,))
    found = verified_mugraph(Graph((x,), (made,)), Graph((x,), (statistics(x)[0],)))
    assert isinstance(found, Failure)
    assert "with shifted inputs in float32" in found.reason


def test_the_generated_triton_code_takes_one_pass(tmp_path: Path) -> None:
    pytest.importorskip("triton", reason="the extra `triton` is not installed")
    from taso_mirage.emit import triton

    (tmp_path / "program.py").write_text(triton.program(one_pass()[0]).source)
    np.save(tmp_path / "x.npy", far())
    code = "import numpy, torch, program; x = torch.from_numpy(numpy.load('x.npy')); numpy.save('y.npy', program.launch(x))"
    ran = interpreter.run(code, cwd=tmp_path)
    assert ran.returncode == 0, ran.stderr[-2000:]
    assert np.abs(np.load(tmp_path / "y.npy") - wanted()).max() <= 1e-4


def test_the_generated_cpp_code_takes_one_pass() -> None:
    (found,) = NativeKernel(one_pass()[0])(far())
    assert np.abs(found - wanted()).max() <= 1e-4


# ---------------------------------------------------------------- the search


def looped(graph: Graph) -> list[tuple[bool, set[str]]]:
    """For each kernel, whether it loops, and the operands of its accumulators."""
    kernels = [n for n in topological(graph.outputs) if n.op == "kernel"]
    return [
        (k.attr("loop") > 1, {n.attr("over") for n in topological(k.attr("body").outputs) if n.op == "accumulate"})
        for k in kernels
    ]


ONE = (True, {"sum", "variance"})


def accepted(goal: Graph, wanted: list[tuple[bool, set[str]]], split: bool = False) -> FoundMuGraph | None:
    """The first verified muGraph of this form; with `split` its reduction is split over the
    grid."""
    searching = Search(goal, SearchOptions())
    for each in searching.candidates():
        graph = each.graph()
        if graph is not None and looped(graph) == wanted and bool(each.closure.goal.split) is split:
            found = searching.accepted(each)
            if found is not None:
                return found
    return None


def shifted(goal: Graph) -> dict[Node, np.ndarray]:
    rng = np.random.default_rng(1)
    return {
        x: (FAR * (i == 0) + rng.normal(size=[int(n) for n in x.shape])).astype(np.float32)
        for i, x in enumerate(goal.inputs)
    }


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    ("goal", "wanted", "split"),
    [
        (layer_norm_goal(8, 65536), [ONE, (False, set())], False),
        (layer_norm_goal(8, 512, 96), [ONE], False),
        (layer_norm_goal(1, 512, 96), [ONE], False),
        (layer_norm_goal(8, 4096, 96), [ONE, (False, set())], True),
    ],
    ids=["a row too long for a block", "linear", "linear of one row", "linear, split"],
)
def test_layer_norms_in_one_pass(goal: Graph, wanted: list[tuple[bool, set[str]]], split: bool) -> None:
    found = accepted(goal, wanted, split)
    assert found is not None
    given = shifted(goal)
    exact = interpret(goal.outputs, EXACT, {x: EXACT.load(v) for x, v in given.items()})[goal.outputs[0]]
    ours = interpret(found.graph.outputs, SINGLE, given)[found.graph.outputs[0]]
    assert np.abs(ours - exact).max() <= 1e-3 * np.abs(exact).max()


def test_a_long_layer_norm_is_split_over_the_grid_in_three_kernels() -> None:
    """The statistics of the parts, those of all, and the rows that they normalise."""
    searching = Search(layer_norm_goal(4, 65536), SearchOptions(max_kernels=3))
    graphs = ((c, graph) for c in searching.candidates() if (graph := c.graph()) is not None)
    fits = (c for c, graph in graphs if looped(graph) == [ONE, (False, set()), (False, set())] and c.closure.goal.split)
    assert any(searching.accepted(c) is not None for c in fits)


@pytest.mark.sampled(5)
def test_half_precision_does_not_round_what_the_mean_is_taken_from() -> None:
    """The product of gamma and the weights is rounded in a dot of half precision, and not in the
    sum that the mean multiplies."""
    searching = Search(layer_norm_goal(8, 4096, 96, "float16"), SearchOptions())
    made = [looped(graph) for each in searching.candidates() if (graph := each.graph()) is not None]
    assert [(False, set()), (True, {"sum"})] in made
    assert ONE not in [form[0] for form in made if len(form) == 1]


def test_the_variance_of_a_model_that_cancels_is_found_in_a_form_that_does_not() -> None:
    x = mugraphs.leaf("X", "float32", 8, 65536)
    mean, squares = (term("reduce_mean", y, axes=(1,)) for y in (x, term("mul", x, x)))
    goal = Graph((x,), (term("sub", squares, term("mul", mean, mean)),))
    found = accepted(goal, [(True, {"variance"})])
    assert found is not None
    given = shifted(goal)
    ours = interpret(found.graph.outputs, SINGLE, given)[found.graph.outputs[0]]
    assert np.abs(ours - given[x].astype(float).var(axis=1, keepdims=True)).max() <= 1e-4


WRONG = {
    "the sum of the parts' variances": lambda v, m: term("accumulate", v),
    "no difference between the parts": lambda v, m: term("accumulate", v, term("sub", m, m), over="variance"),
    "the mean of the squares": lambda v, m: term("accumulate", v, term("mul", m, m), over="variance"),
    "operands exchanged": lambda v, m: term("accumulate", m, v, over="variance"),
    "the largest": lambda v, m: term("accumulate", v, over="max"),
}


@pytest.mark.parametrize("name", WRONG)
def test_wrong_accumulators_are_refused(name: str) -> None:
    x = mugraphs.leaf("x", "float32", 6, 24)
    made = mugraphs.kernel([(x, (0,), 1)], lambda t: WRONG[name](*statistics(t)), (3,), 4, (0,))
    found = verified_mugraph(Graph((x,), (made,)), one_pass()[1])
    assert isinstance(found, Failure)
    assert "differs from the goal's in the field" in found.reason
