"""Integers from end to end: no rewrite moves a model onto or off a kernel of the runtime that
rounds, the check draws extreme ones, and scalars of rank 0 pass."""

from __future__ import annotations

import subprocess
import sys
from itertools import islice
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto as T
from onnx import helper as h

from taso_mirage.errors import RunFailed
from taso_mirage.ir.model import Model, StoredWeight, random_inputs
from taso_mirage.ir.terms import Graph, Node, Tensor, constant, numpy_dtype, variable, weight
from taso_mirage.meanings.reals import REALS
from taso_mirage.measure import check
from taso_mirage.measure.reference import FloatReference
from taso_mirage.measure.session import Session
from taso_mirage.onnx_io import from_ir, load, serialize, to_ir
from taso_mirage.onnx_io.build import standalone
from taso_mirage.onnx_io.protos import from_proto
from taso_mirage.operators import exactness
from taso_mirage.operators.interpret import interpret
from taso_mirage.operators.ops import get, load_specs, term
from taso_mirage.pipeline import optimize_model
from taso_mirage.prove.bounded import prove_bounded
from taso_mirage.prove.symbolic import Proved, prove_symbolic
from taso_mirage.rewriting.equation import instantiate
from taso_mirage.rewriting.index import Rules
from taso_mirage.rewriting.text import laws
from taso_mirage.search.arrays import read_inputs
from taso_mirage.search.config import Config
from taso_mirage.search.cost import Cost, Roofline
from taso_mirage.search.passes import Context, simplify
from taso_mirage.search.rulesets import rules
from taso_mirage.search.search import Budget, directions, rewrites, search_model
from taso_mirage.search.weights import fold_weights

CONTEXT = Context({"": 20, "com.microsoft": 1}, {})
RULES = rules()
EAGER, BOTH = Rules(RULES), Rules(directions(RULES))
KINDS = ("int32", "int64")


def built(outputs: tuple[Node, ...], *inputs: Node) -> Model:
    return from_ir(to_ir(standalone(Graph(inputs, outputs), {"": 20})))


def ints(name: str, dtype: str, *shape: int) -> Node:
    return variable(name, Tensor(dtype, shape))


def extremes(model: Model, seed: int = 0) -> dict[str, np.ndarray]:
    return random_inputs(model, seed, {}, extreme=model.input_names)


def number(value: int, dtype: str) -> Node:
    return constant(np.array([value], dtype))


# ---------------------------------------------------------------- the runtime's kernels


def graphs(dtype: str) -> dict[str, tuple[tuple[Node, ...], tuple[Node, ...]]]:
    """Models that a law would move onto or off a kernel that rounds: outputs, inputs."""
    x, y = ints("x", dtype, 2, 3), ints("y", dtype, 2, 3)
    total = term("reduce_sum", x, axes=(1,))
    both = term("reduce_sum", y, axes=(1,))
    prod = term("reduce_prod", x, axes=(1,))
    return {
        "a factor": ((term("reduce_sum", term("mul", x, number(3, dtype)), axes=(1,)),), (x,)),
        "a factor after": ((term("mul", total, number(3, dtype)),), (x,)),
        "signs": ((term("reduce_sum", term("neg", x), axes=(1,)),), (x,)),
        "sums": ((term("add", total, both),), (x, y)),
        "sum of sums": ((term("reduce_sum", term("add", x, y), axes=(1,)),), (x, y)),
        "both axes": ((term("reduce_sum", total, axes=(0,)),), (x,)),
        "magnitudes": ((term("reduce_sum", term("abs", x), axes=(1,)),), (x,)),
        "squares": ((term("reduce_sum", term("mul", x, x), axes=(1,)),), (x,)),
        "a column": ((term("squeeze", total, axes=(1,)),), (x,)),
        "two columns": ((term("concat", total, both, axis=1),), (x, y)),
        "a part": ((term("slice", prod, starts=(0,), ends=(1,), axes=(0,), steps=(1,)),), (x,)),
        "a product with ones": ((term("matmul", x, constant(np.ones((3, 1), dtype))),), (x,)),
    }


@pytest.mark.parametrize("dtype", KINDS)
@pytest.mark.parametrize("name", graphs("int64"))
def test_every_rewrite_of_integers_gives_the_same_bits_in_the_runtime(name: str, dtype: str) -> None:
    """One step of every rule in both directions, whether it pays or not."""
    outputs, inputs = graphs(dtype)[name]
    model = built(outputs, *inputs)
    before = Session(serialize(model, source=True))
    feeds = [extremes(model, seed) for seed in range(4)]
    expected = [before.run(feed) for feed in feeds]
    for state in islice(rewrites(model.graph.outputs, BOTH, EAGER, CONTEXT), 60):
        try:
            after = Session(serialize(model.with_graph(state.outputs)))
        except RunFailed:  # the runtime has no such kernel, which `Available` asks for
            continue
        for feed, old in zip(feeds, expected, strict=True):
            for a, b in zip(old, after.run(feed), strict=True):
                assert np.array_equal(a, b), [n.op for n in Graph(inputs, state.outputs)]


@pytest.mark.parametrize("dtype", KINDS)
def test_what_is_searched_gives_the_same_bits(dtype: str) -> None:
    for outputs, inputs in graphs(dtype).values():
        model = built(outputs, *inputs)
        cost = Cost(Roofline(CONTEXT))
        found, _, _ = search_model(model.graph.outputs, BOTH, EAGER, cost, CONTEXT, Budget(0.3, states_per_part=20))
        old, new = Session(serialize(model, source=True)), Session(serialize(model.with_graph(found)))
        feed = extremes(model, 7)
        assert all(np.array_equal(a, b) for a, b in zip(old.run(feed), new.run(feed), strict=True))


@pytest.mark.parametrize("law", ["reduce_sum.1", "reduce_sum.3", "reduce_sum.4", "reduce_sum.6"])
def test_laws_about_sums_still_hold_for_floats(law: str) -> None:
    """Integers alone are refused."""
    equation = next(e for e in laws() if e.name == law)
    x, y, c = (variable(n, Tensor("float32", s)) for n, s in (("x", (2, 3)), ("y", (2, 3)), ("c", (1,))))
    (left,) = instantiate(equation.lhs, {"x": x, "y": y, "c": c, "i": (1,), "k": 1})
    assert EAGER.applications(left)


@pytest.mark.sampled(2)
def test_division_is_never_made_of_integers() -> None:
    """The least integer divided by -1 ends the process: the rewritten models run in one of their
    own."""
    code = (
        "import test_integers as t\n"
        "for dtype in t.KINDS:\n"
        "    x = t.ints('x', dtype, 6)\n"
        "    for made in (t.term('neg', x), t.term('neg', t.term('neg', x)), t.term('mul', x, t.number(-1, dtype))):\n"
        "        model = t.built((made,), x)\n"
        "        feed = t.extremes(model)\n"
        "        (old,) = t.Session(t.serialize(model, source=True)).run(feed)\n"
        "        for state in t.rewrites((made,), t.BOTH, t.EAGER, t.CONTEXT):\n"
        "            (new,) = t.Session(t.serialize(model.with_graph(state.outputs))).run(feed)\n"
        "            assert t.np.array_equal(old, new), state.outputs\n"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=Path(__file__).parent, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-500:]


def drawn(node: Node, example: tuple[object, ...]) -> dict[Node, np.ndarray] | None:
    """Extreme values for the operands of an example; None where one is no tensor of integers."""
    rng = np.random.default_rng(0)
    found: dict[Node, np.ndarray] = {}
    for arg in dict.fromkeys(a for a in node.args if a.op == "input"):
        if arg.dtype == "bool" or "float" in arg.dtype:
            return None
        info = np.iinfo(numpy_dtype(arg.dtype))
        found[arg] = np.asarray(rng.choice(np.array([info.min, info.max, 0, 1], arg.dtype), arg.shape))
    return found


def integer_examples(op_name: str, dtype: str) -> list[Node]:
    made = []
    for example in get(op_name).examples:
        if not all(isinstance(o, str) for o in example.operands):
            continue
        shapes = [str(o).partition("[")[2].rstrip("]") for o in example.operands]
        sizes = [() if s == "()" else tuple(int(n) for n in s.split(",") if n) for s in shapes]
        leaves = [ints(f"x{i}", dtype, *size) for i, size in enumerate(sizes)]
        try:
            made.append(get(op_name).term(*leaves, **example.attrs))
        except Exception:  # the operator has no integers
            continue
    return made


@pytest.mark.parametrize("dtype", ["int32", "int64", "uint8"])
def test_the_runtime_computes_all_other_integers_as_they_are_defined(dtype: str) -> None:
    """The list of kernels that round is complete: a kernel that is not in it gives numpy's bits on
    extreme integers, and one that is in it does not."""
    rounded, compared = set(), set()
    for name, op in load_specs().items():
        if (
            op.onnx is None
            or op.truncates
            or op.domain
            or name in ("gather", "gather_nd", "gather_elements", "bit_shift")
        ):
            continue
        for node in integer_examples(name, dtype):
            values = None if isinstance(node.type, tuple) else drawn(node, ())
            if values is None:
                continue
            model = standalone(Graph(tuple(values), (node,)), {"": 21})
            try:
                (given,) = Session(serialize(model)).run({n.attr("name"): v for n, v in values.items()})
            except Exception:  # the runtime has no such kernel
                continue
            compared.add(name)
            if not np.array_equal(given, interpret((node,), REALS, values)[node]):
                rounded.add(name)
    assert len(compared) > 25
    assert all(get(name).traits.rounds for name in rounded)
    assert dtype == "uint8" or {"reduce_sum", "reduce_prod", "reduce_l1", "reduce_sum_square"} <= rounded


# ---------------------------------------------------------------- computed ahead


@pytest.mark.parametrize("op", ["ReduceSum", "ReduceProd", "ReduceL1", "ReduceSumSquare"])
@pytest.mark.parametrize("large", [False, True])
def test_what_is_known_is_computed_ahead_only_where_the_runtime_gives_the_same(op: str, large: bool) -> None:
    """A small constant is folded on reading, a large one as a weight."""
    values = np.full((2000 if large else 3,), 2**62, np.int64)
    nodes = [h.make_node(op, ["c"], ["s"], keepdims=1), h.make_node("Add", ["s", "x"], ["y"])]
    x, y = (h.make_tensor_value_info(n, T.INT64, [1]) for n in "xy")
    made = h.make_model(
        h.make_graph(nodes, "g", [x], [y], [onnx.numpy_helper.from_array(values, "c")]),
        opset_imports=[h.make_opsetid("", 17)],
        ir_version=8,
    )
    model = from_ir(from_proto(made))
    outputs, _ = simplify(model.graph.outputs, EAGER, CONTEXT)
    folded, _ = fold_weights(model.with_graph(outputs))
    feed = {"x": np.array([0], np.int64)}
    (old,), (new,) = (Session(c).run(feed) for c in (made.SerializeToString(), serialize(folded)))
    assert np.array_equal(old, new)


def test_small_integers_are_still_computed_ahead() -> None:
    node = term("reduce_prod", constant(np.array([2, 3, 4])), axes=(0,), keepdims=0)
    assert exactness.agrees(node, [np.array([2, 3, 4])])
    assert not exactness.agrees(node, [np.array([2**31, 2**31, 2**31])])
    quotient = term("div", constant(np.array([7])), constant(np.array([-1])))
    assert exactness.agrees(quotient, [np.array([7]), np.array([-1])])
    assert not exactness.agrees(quotient, [np.array([-(2**63)]), np.array([-1])])
    assert not exactness.agrees(quotient, [np.array([7]), np.array([0])])


# ---------------------------------------------------------------- the prover


@pytest.mark.parametrize("dtype", ["int8", "uint8", "int64"])
@pytest.mark.parametrize(
    "law", ["reduce_sum.1", "reduce_sum.2", "reduce_sum.3", "reduce_sum.4", "reduce_sum.5", "reduce_sum.6"]
)
def test_what_is_proved_about_integers_wraps_as_numpy_does(law: str, dtype: str) -> None:
    equation = next(e for e in laws() if e.name == law)
    names = {
        "x": ints("x", dtype, 2, 3),
        "y": ints("y", dtype, 2, 3),
        "c": ints("c", dtype, 1),
        "i": (1,),
        "j": (0,),
        "k": 1,
    }
    left, right = (instantiate(side, names, dtype) for side in (equation.lhs, equation.rhs))
    proved = isinstance(prove_symbolic(left, right), Proved) or isinstance(prove_bounded(left, right), Proved)
    rng = np.random.default_rng(0)
    info, same = np.iinfo(dtype), True
    for _ in range(50):
        env = {
            n: rng.choice(np.array([info.min, info.max, 0, 1, 3, info.max // 2 + 1], dtype), n.shape)
            for n in names.values()
            if isinstance(n, Node)
        }
        with np.errstate(all="ignore"):
            found = interpret([*left, *right], REALS, env)
        same &= all(np.array_equal(found[a], found[b]) for a, b in zip(left, right, strict=True))
    assert same or not proved
    assert proved or law == "reduce_sum.2"  # a sum of truncated quotients is another one


# ---------------------------------------------------------------- the draws of the check


def names_of(model: Model) -> list[str]:
    return [c.name for c in check.check_cases(model, Session(serialize(model)), {})]


def test_the_check_draws_the_least_and_the_greatest_integers() -> None:
    x, y = ints("x", "int32", 40), ints("y", "int32", 40)
    model = built((term("add", x, y),), x, y)
    found = {c.name: c for c in check.check_cases(model, Session(serialize(model)), {})}
    case = found["random inputs with extreme integers in x, y"]
    assert {-(2**31), 2**31 - 1, -1, 0} <= set(case.inputs["x"].tolist())
    assert np.array_equal(case.original[0], case.reference[0])


def test_extreme_integers_are_left_out_where_they_are_divided() -> None:
    x = ints("x", "int64", 5)
    assert not [n for n in names_of(built((term("div", x, number(3, "int64")),), x)) if "extreme" in n]


def test_the_extremes_of_ids_are_rows_of_their_table() -> None:
    """The CUDA provider reads zeros where an id is no row, which float64 and other kernels do
    not."""
    table, ids = ints("table", "int64", 4, 3), ints("ids", "int64", 40)
    model = built((term("gather", table, ids, axis=0),), table, ids)
    found = {c.name: c for c in check.check_cases(model, Session(serialize(model)), {})}
    case = found["random inputs with extreme integers in table, ids"]
    assert {0, 3} == set(case.inputs["ids"].tolist())
    assert {-(2**63), 2**63 - 1} <= set(case.inputs["table"].ravel().tolist())


def test_extreme_integers_never_reach_a_node_whose_work_hangs_on_them() -> None:
    """The integers would be the turns of a loop, or the sizes of a tensor."""
    nodes = [h.make_node("Range", ["zero", "n", "one"], ["r"]), h.make_node("ReduceMax", ["r"], ["y"], keepdims=0)]
    made = h.make_model(
        h.make_graph(
            nodes,
            "g",
            [h.make_tensor_value_info("n", T.INT32, [])],
            [h.make_tensor_value_info("y", T.INT32, [])],
            [onnx.numpy_helper.from_array(np.array(v, np.int32), n) for n, v in (("zero", -1), ("one", 1))],
        ),
        opset_imports=[h.make_opsetid("", 17)],
        ir_version=8,
    )
    assert not [n for n in names_of(from_ir(from_proto(made))) if "extreme" in n]


def test_a_model_of_integers_is_optimized_and_its_overflows_stay() -> None:
    x = ints("x", "int64", 4, 8)
    model = built((term("reduce_sum", term("neg", term("neg", x)), axes=(1,)),), x)
    result = optimize_model(model, Config(budget=1, measure=False))
    assert result.changed
    assert any("extreme" in c.name for c in result.cases)
    old, new = Session(serialize(model, source=True)), Session(serialize(result.model))
    for seed in range(5):
        assert np.array_equal(*(s.run(extremes(model, seed))[0] for s in (old, new)))


# ---------------------------------------------------------------- scalars

DTYPES = "bool float16 float32 float64 int8 int16 int32 int64 uint8 uint16 uint32 uint64".split()


def of_scalars(dtype: str) -> Model:
    """A scalar as an input, as an operand and result of an opaque node (a function), from a vector,
    and as outputs."""
    kind = h.np_dtype_to_tensor_dtype(np.dtype(dtype))
    body = h.make_function(
        "mine", "same", ["a"], ["b"], [h.make_node("Identity", ["a"], ["b"])], [h.make_opsetid("", 17)]
    )
    nodes = [
        h.make_node("same", ["s"], ["direct"], domain="mine"),
        h.make_node("Gather", ["v", "i"], ["picked"], axis=0),
        h.make_node("same", ["picked"], ["called"], domain="mine"),
        h.make_node("Unsqueeze", ["called", "zero"], ["vector"]),
        h.make_node("Concat", ["vector", "v"], ["joined"], axis=0),
    ]
    graph = h.make_graph(
        nodes,
        "g",
        [h.make_tensor_value_info("s", kind, []), h.make_tensor_value_info("v", kind, [3])],
        [
            h.make_tensor_value_info("direct", kind, []),
            h.make_tensor_value_info("picked", kind, []),
            h.make_tensor_value_info("called", kind, []),
            h.make_tensor_value_info("joined", kind, [4]),
        ],
        [onnx.numpy_helper.from_array(np.array(v), n) for n, v in (("i", 1), ("zero", [0]))],
    )
    imports = [h.make_opsetid("", 17), h.make_opsetid("mine", 1)]
    return from_ir(from_proto(h.make_model(graph, functions=[body], opset_imports=imports, ir_version=8)))


@pytest.mark.parametrize("dtype", DTYPES)
def test_scalars_of_every_dtype_pass(dtype: str) -> None:
    model = of_scalars(dtype)
    result = optimize_model(model, Config(budget=1, measure=False))
    assert all(d.passed for d in result.differences)
    assert result.cases
    for seed in range(3):
        inputs = random_inputs(model, seed)
        assert all(isinstance(v, np.ndarray) for v in inputs.values())
        outputs = FloatReference(model)(inputs)
        assert all(isinstance(o, np.ndarray) for o in outputs)
        assert np.array_equal(outputs[0], inputs["s"])
        assert outputs[0].shape == ()
        assert np.array_equal(outputs[2], inputs["v"][1])


@pytest.mark.parametrize("dtype", DTYPES)
def test_numpys_numbers_are_scalars_too(dtype: str, tmp_path: Path) -> None:
    """numpy makes such scalars of arrays of rank 0, in a file and in a program."""
    model, path = of_scalars(dtype), tmp_path / "given.npz"
    number, vector = np.ones((), dtype)[()], np.ones(3, dtype)
    np.savez(path, s=number, v=vector)
    given = read_inputs(model, path)
    assert isinstance(given["s"], np.ndarray)
    assert given["s"].shape == ()
    result = optimize_model(model, Config(budget=1, measure=False, inputs=(given,)))
    assert result.cases
    assert result.cases[0].name == "the given inputs 1"
    assert np.array_equal(FloatReference(model)({"s": number, "v": vector})[0], number)


def test_a_table_of_weights_gives_scalars(tmp_path: Path) -> None:
    """A scalar that is picked from a weight, by the meaning alone."""
    w = StoredWeight(np.arange(5000, dtype=np.float32))
    x = variable("x", Tensor("int64", ()))
    leaf = weight("w", Tensor("float32", (5000,)))
    model = standalone(Graph((x,), (term("gather", leaf, x, axis=0),)), {"": 17}, {"w": w})
    (found,) = FloatReference(model)({"x": np.array(3)})
    assert isinstance(found, np.ndarray)
    assert found == 3
    path = tmp_path / "m.onnx"
    path.write_bytes(serialize(model))
    assert optimize_model(load(path), Config(budget=1, measure=False)).cases
