"""C++ of muGraphs: its results are float64's, at odd sizes, on threads, with logits that overflow;
and no sanitizer complains."""

from __future__ import annotations

import ctypes
import re
import subprocess
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import mugraphs
import numpy as np
import pytest
from mugraphs import Pair, kernel, leaf
from native_kernels import QUICK, STRICT, computes, exact, values

from taso_mirage.devices.cpu.compiler import compiler
from taso_mirage.devices.cpu.device import CPU_DEVICE
from taso_mirage.emit.cpp import generate_all, generate_cpp
from taso_mirage.emit.cpu.native_kernel import FLAGS, NativeKernel, build
from taso_mirage.emit.cpu.prepared import cpu_programs, header
from taso_mirage.errors import InvalidOption, RuntimeUnavailable, Unsupported
from taso_mirage.ir.terms import ABSENT, Graph, Node, Tensor, constant, is_float, variable
from taso_mirage.mugraph.graph import new_graph
from taso_mirage.mugraph.search import superoptimize
from taso_mirage.operators.ops import get, load_specs, term
from taso_mirage.rewriting.text import parse_graph, parse_type

pytestmark = pytest.mark.sampled(2)

EXAMPLES = (*QUICK, "-Wno-type-limits")
"""For the operators' examples, of which some are empty; optimized code, as of models' kernels,
takes three times as long to compile."""
ODD: dict[str, Callable[..., Pair]] = {
    "rmsnorm_linear": partial(mugraphs.rmsnorm_linear, 7, 75, 57, 3, 5, gamma=True, bias=True),
    "gated_mlp": partial(mugraphs.gated_mlp, 1, 66, 201, 3, 2),
    "lora": partial(mugraphs.lora, 5, 34, 99, 3, 1, 17),
    "ntrans": partial(mugraphs.ntrans, 3, 515, 1),
    "attention": partial(mugraphs.attention_safe, 3, 5, 17, 99, 37, 5, 3, masked=True),
    "attention one key": partial(mugraphs.attention_safe, 1, 6, 33, 4, 31, 1, 4),
    "attention_split": partial(mugraphs.attention_split_safe, 1, 9, 33, 190, 129, 3, 5, 2, masked=True),
    "qknorm": partial(mugraphs.qknorm, heads=1, queries=1, dim=64, keys=130, width=64, blocks=1, loop=2),
}


# ---------------------------------------------------------------- muGraphs


@pytest.mark.sampled(2)
@pytest.mark.parametrize("name", [*mugraphs.WORKLOADS, *(f"{name} odd" for name in ODD)])
def test_a_mugraph_computes_its_goal(name: str) -> None:
    builder = ODD[name.removesuffix(" odd")] if name.endswith(" odd") else mugraphs.WORKLOADS[name]
    graph, goal = builder(dtype="float32")
    made = NativeKernel(graph, flags=STRICT)
    assert computes(made, goal, values(graph))
    assert computes(made, goal, values(graph, 1, 0.01), 1e-5)


def test_half_precision_is_computed_in_fp32() -> None:
    graph, goal = mugraphs.rmsnorm_linear(3, 40, 48, 3, 2, gamma=True, bias=True)
    given = values(graph)
    (found,) = NativeKernel(graph, flags=STRICT)(*given.values())
    (wanted,) = exact(goal, given)
    assert found.dtype == np.float16
    assert np.abs(found - wanted).max() <= 2**-11 * np.abs(wanted).max()


def test_blocks_run_on_the_callers_threads() -> None:
    """The blocks that join the parts are few, and have no product: they do not wait for others."""
    graph, goal = mugraphs.attention_split_safe(masked=True, dtype="float32")
    made, given = NativeKernel(graph, flags=STRICT), values(graph)
    block = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_size_t)
    seen: list[tuple[int, Any]] = []
    threads: set[int] = set()

    with ThreadPoolExecutor(4) as workers:

        @ctypes.CFUNCTYPE(None, block, ctypes.c_size_t, ctypes.c_void_p, ctypes.c_void_p)
        def parallel_for(fn: Any, count: int, data: Any, pool: Any) -> None:
            def one(i: int) -> None:
                threads.add(threading.get_ident())
                fn(data, i)

            seen.append((count, pool))
            list(workers.map(one, reversed(range(count))))

        made._parallel, made._pool = parallel_for, ctypes.c_void_p(42)
        assert computes(made, goal, given)
    assert seen == [(2 * 3 * 4, 42)]
    assert threading.get_ident() not in threads


def test_the_pool_gives_what_one_thread_does() -> None:
    graph, _ = mugraphs.attention_split_safe(masked=True, dtype="float32")
    given = values(graph)
    pooled = NativeKernel(graph, flags=STRICT, threads=3)
    (alone,) = NativeKernel(graph, flags=STRICT)(*given.values())
    for _ in range(200):
        np.testing.assert_array_equal(pooled(*given.values())[0], alone)


@pytest.mark.sampled(1)
@pytest.mark.parametrize("builder", [mugraphs.attention_safe, mugraphs.attention_split_safe])
@pytest.mark.parametrize("scale", [1.0, 1e3, 1e10])
def test_softmax_is_safe(builder: Callable[..., Pair], scale: float) -> None:
    """Scores up to 1e20 of both signs, rows that a mask hides in whole tiles and splits, and masked
    keys that hold infinity."""
    graph, goal = builder(masked=True, dtype="float32")
    given = values(graph, 3)
    q, _, _, mask = graph.inputs
    given[q] = (given[q] * scale).astype(np.float32)
    keys = int(mask.shape[1])
    given[mask][:] = 0
    given[mask][0, : keys // 2] = -np.inf  # the first half: whole iterations and splits
    given[mask][1, keys // 3 :] = -np.inf
    given[mask][2, 1:] = -np.inf
    (found,) = NativeKernel(graph, flags=STRICT)(*given.values())
    (wanted,) = exact(goal, given)
    assert np.isfinite(found).all()
    if scale <= 1e3:  # beyond, fp32 and float64 may disagree about which score is the largest
        assert np.abs(found - wanted).max() <= 2e-7 * scale * max(1.0, 10 / scale) * np.abs(wanted).max()


@pytest.mark.sampled(1)
def test_not_a_number_is_not_hidden() -> None:
    graph, _ = mugraphs.attention_safe(dtype="float32")
    given = values(graph)
    given[graph.inputs[0]][0, 0, 0] = np.nan
    (found,) = NativeKernel(graph, flags=STRICT)(*given.values())
    assert np.isnan(found[0, 0]).all()
    assert np.isfinite(found[0, 1:]).all()


# ---------------------------------------------------------------- bodies and graphs of other forms


def pair(body: Callable[..., Node], shape: Sequence[int], grid: tuple[int, ...], *omap: tuple[int, ...]) -> Pair:
    """A kernel over rows of X, and the same body over all of it."""
    x = leaf("X", "float32", *shape)
    made = kernel([(x, tuple(range(len(grid))), -1)], body, grid, 1, *omap)
    return Graph((x,), (made,)), Graph((x,), (body(x),))


def turned(x: Node) -> Node:
    """Rotary embedding's moves: halves, a negation, a concatenation and merged axes."""
    half = int(x.shape[2]) // 2
    first, second = (term("slice", x, starts=(i,), ends=(i + half,), axes=(2,), steps=(1,)) for i in (0, half))
    whole = term("add", term("exp", x), term("concat", term("neg", second), first, axis=2))
    return term("reshape", whole, shape=(x.shape[0], x.shape[1] * x.shape[2]))


def between(x: Node) -> Node:
    """A merged axis between two folds, a transpose, and a value that three nests read."""
    p = term("exp", term("transpose", x, perm=(0, 2, 1)))
    flat = term("reshape", p, shape=(x.shape[0], x.shape[1] * x.shape[2]))
    total = term("reduce_sum", flat, axes=(1,))
    return term("div", term("reduce_max", p, axes=(1,), keepdims=0), total)


def thread(x: Node) -> Node:
    """A kernel in the body: its threads are slices."""
    return kernel([(x, (1,), -1)], lambda t: term("swish", t), (x.shape[1],), 1, (1,))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("body", "omap"), [(turned, (0,)), (between, (0,)), (thread, (0,))], ids=["turned", "between", "thread"]
)
def test_bodies_that_move_elements(body: Callable[..., Node], omap: tuple[int, ...]) -> None:
    graph, goal = pair(body, (6, 3, 10), (3,), omap)
    assert computes(NativeKernel(graph, flags=STRICT), goal, values(graph))


@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_a_result_of_the_first_blocks_alone(dtype: str) -> None:
    """The other blocks compute something else, and do not store it; on threads, so that their order
    is open."""
    x, y = leaf("X", dtype, 4, 6), leaf("Y", dtype, 6, 8)

    def body(x: Node, y: Node) -> tuple[Node, Node, Node]:
        return (
            term("matmul", x, y),
            term("reduce_sum", y, axes=(0,), keepdims=0),
            term("reduce_max", y, axes=(0, 1), keepdims=0),
        )

    grid, omap = (2, 4), ((0, 1), (-1, 0), (-1, -1))
    made = kernel([(x, (0, -1), -1), (y, (-1, 1), -1)], body, grid, 1, *omap)
    items = [term("item", made, index=i) for i in range(3)]
    graph = Graph((x, y), tuple(items))
    given = values(graph)
    (product, sums, largest) = NativeKernel(graph, flags=STRICT, threads=2)(*given.values())
    wide = {k: v.astype(np.float64) for k, v in given.items()}
    tolerance = 1e-5 if dtype == "float32" else 1e-2
    np.testing.assert_allclose(product, wide[x] @ wide[y], tolerance, tolerance)
    np.testing.assert_allclose(sums, wide[y].sum(0), tolerance, tolerance)
    assert largest == wide[y][:, :2].max().astype(dtype)


def test_an_invariant_is_computed_before_the_loop() -> None:
    x, y = leaf("X", "float32", 4, 6), leaf("Y", "float32", 4, 30)

    def body(x: Node, y: Node) -> Node:
        weights = term("exp", x)
        summed = term(
            "accumulate", term("reduce_sum", term("mul", y, term("reduce_sum", weights, axes=(1,))), axes=(1,))
        )
        return term("mul", weights, summed)

    graph = Graph((x, y), (kernel([(x, (0,), -1), (y, (0,), 1)], body, (2,), 5, (0,)),))
    goal = Graph((x, y), (body(x, y),))
    assert computes(NativeKernel(graph, flags=STRICT), goal, values(graph))
    source = generate_cpp(graph)
    assert source.rindex("exponential(") < source.index("for (size_t iteration")


def test_ordinary_operators_constants_and_repeated_outputs() -> None:
    x = leaf("X", "float32", 4, 6)
    table = constant(np.arange(6, dtype=np.float32))
    made = kernel([(x, (0,), -1), (table, (-1,), -1)], lambda t, c: term("mul", t, c), (2,), 1, (0,))
    graph = Graph((x,), (term("softmax", made, axis=1), made, x, made))
    goal = Graph(
        (x,), (term("softmax", term("mul", x, table), axis=1), term("mul", x, table), x, term("mul", x, table))
    )
    assert computes(NativeKernel(graph, flags=STRICT), goal, values(graph))


def operator_uses() -> tuple[list[tuple[str, Node]], set[str]]:
    """Every operator of floats on each of its examples, and why others have no C++.

    A muGraph prepares the weights of one at most: those have tests of their own.
    """
    found, without = [], set()
    for op in load_specs().values():
        if op.name in cpu_programs():
            continue
        for i, example in enumerate(op.examples):
            operands = [
                ABSENT if o is None
                else variable(f"{op.name}_{i}_{k}", parse_type(o)) if isinstance(o, str)
                else constant(np.asarray(o, np.int64))
                for k, o in enumerate(example.operands)
            ]  # fmt: skip
            made = op.term(*operands, **example.attrs)
            parts = (
                [get("item").term(made, index=j) for j in range(len(made.type))]
                if isinstance(made.type, tuple)
                else [made]
            )
            leaves = tuple(o for o in operands if o.op == "input")
            if not all(is_float(x.dtype) and all(isinstance(n, int) for n in x.shape) for x in (*leaves, *parts)):
                continue
            try:
                generate_cpp(Graph(leaves, tuple(parts)))
            except Unsupported as error:
                without.add(str(error))
            else:
                found += [(op.name, part) for part in parts]
    return found, without


@pytest.mark.sampled(1)
def test_every_operator_has_its_own_meaning() -> None:
    uses, without = operator_uses()
    names = {name for name, _ in uses}
    assert len(names) > 90
    assert {"softmax", "matmul", "einsum", "layer_norm", "gelu", "attention", "concat", "split", "transpose"} <= names
    missing = (
        r"the primitive (cumulate|pad|put|take|window) has|no C\+\+ for (tensors of float(64|8_\w+)|the function \w+)"
    )
    reason = rf"{missing}|blocks that overlap|a cluster of blocks|padding between elements"
    assert [why for why in without if not re.match(reason, why)] == []
    outputs = tuple(dict.fromkeys(part for _, part in uses))
    inputs = tuple(n for n in Graph((), outputs) if n.op == "input")
    graph = Graph(inputs, outputs)
    rng = np.random.default_rng(0)
    given = {x: rng.uniform(0.5, 2, [int(n) for n in x.shape]).astype(x.dtype) for x in inputs}
    found = dict(zip(outputs, NativeKernel(graph, flags=EXAMPLES)(*given.values()), strict=True))
    wanted = dict(zip(outputs, exact(graph, given), strict=True))
    wrong = []
    for name, part in uses:
        half = 1e-2 if "group_norm" in name else 2e-3  # small groups may vary little: roundings grow when divided
        tolerance = 1e-5 if part.dtype == "float32" else half
        if not np.allclose(found[part], wanted[part], tolerance, tolerance, equal_nan=True):
            wrong.append((name, part.attrs))
    assert wrong == []


def weighed(x: Node, w: Node, g: Node) -> Node:
    """A row of x times g, as a vector, times a matrix, written as a sum over products; scaled by
    the sum of the row."""
    row = term("mul", x, g)
    scale = term("div", row, term("reduce_sum", term("mul", x, x), axes=(0,)))
    return term("reduce_sum", term("mul", term("reshape", scale, shape=(x.shape[0], 1)), w), axes=(0,), keepdims=0)


def dotted(w: Node, x: Node) -> Node:
    """A product along rows of the matrix, times a number, with the result's axes last to first."""
    return term(
        "transpose",
        term("reduce_sum", term("mul", term("mul", w, x), constant(np.float32(3))), axes=(2,)),
        perm=(2, 1, 0),
    )


@pytest.mark.sampled(2)
@pytest.mark.parametrize("columns", [1, 5, 200])
def test_a_sum_of_products_is_a_product(columns: int) -> None:
    x, w, g = leaf("X", "float32", 37), leaf("W", "float32", 37, columns * 3), leaf("G", "float32", 37)
    graph = Graph((x, w, g), (kernel([(x, (-1,), -1), (w, (1,), -1), (g, (-1,), -1)], weighed, (3,), 1, (0,)),))
    assert computes(NativeKernel(graph, flags=STRICT), Graph((x, w, g), (weighed(x, w, g),)), values(graph, 3))
    assert ("streamed<" in generate_cpp(graph).replace(header("vector.h"), "")) == (columns == 200)
    y, v = leaf("Y", "float32", 2, columns, 33), leaf("V", "float32", 33)
    rows = Graph((y, v), (kernel([(y, (0,), -1), (v, (-1,), -1)], dotted, (2,), 1, (2,)),))
    assert computes(NativeKernel(rows, flags=STRICT), Graph((y, v), (dotted(y, v),)), values(rows, 4))


def scores(x: Node, y: Node) -> Node:
    """The products of the rows of x with those of y."""
    return term("matmul", x, term("transpose", y, perm=(1, 0)))


def turned_scores(x: Node, y: Node) -> Node:
    return term("transpose", scores(x, y), perm=(1, 0))


def rows_times_rows(m: int, n: int, k: int, body: Callable[[Node, Node], Node], dtype: str = "float32") -> Pair:
    x, y = leaf("X", dtype, m, k), leaf("Y", dtype, n, k)
    made = kernel([(x, (-1,), -1), (y, (-1,), -1)], body, (1,), 1, (-1,))
    return Graph((x, y), (made,)), Graph((x, y), (body(x, y),))


ROWS = ((16, 64, 64), (17, 21, 9), (40, 130, 256), (16, 15, 8), (18, 16, 257), (64, 197, 31), (3, 40, 20))


@pytest.mark.sampled(3)
@pytest.mark.parametrize(
    ("sizes", "body"),
    [
        *((sizes, scores) for sizes in ROWS),
        *(pytest.param(s, turned_scores, marks=[pytest.mark.slow] * (i % 3 > 0)) for i, s in enumerate(ROWS)),
    ],
    ids=lambda each: each.__name__ if callable(each) else str(each),
)
def test_rows_times_rows(sizes: tuple[int, int, int], body: Callable[[Node, Node], Node]) -> None:
    """Many of them are turned first, in parts that are multiples of a vector or not."""
    for dtype, tolerance in (("float32", 3e-6), ("float16", 1e-3)):
        graph, goal = rows_times_rows(*sizes, body, dtype)
        assert "rows<" in generate_cpp(graph).replace(header("vector.h"), "")
        assert computes(NativeKernel(graph, flags=STRICT), goal, values(graph), tolerance)


def test_several_mugraphs_share_a_source() -> None:
    """With one table in common, and one of their own."""
    x = leaf("X", "float32", 4, 6)
    tables = [constant(np.arange(6, dtype=np.float32) + i) for i in (0, 0, 1)]
    graphs = [Graph((x,), (term(op, x, t),)) for op, t in zip(("mul", "add", "mul"), tables, strict=True)]
    library = build(generate_all({f"k{i}": graph for i, graph in enumerate(graphs)}), flags=STRICT)
    for i, graph in enumerate(graphs):
        assert computes(NativeKernel(graph, f"k{i}", library=library), graph, values(graph))


# ---------------------------------------------------------------- elementary functions


@pytest.fixture(scope="module")
def functions() -> Callable[[str, Any], Any]:
    names = ("exponential", "tangent", "error_function", "logarithm", "logarithm_of_1p")
    calls = "".join(
        f'extern "C" void vector_{n}(const float* x, float* y, size_t count) {{\n#pragma omp simd\n'
        f"  for (size_t i = 0; i < count; ++i) y[i] = {n}(x[i]);\n}}\n"
        for n in names
    )
    unused = 'extern "C" void (*const kept)(void (*)(void*, size_t), size_t, void**, parallel_for_t, void*) = run;\n'
    library = ctypes.CDLL(str(build(header("vector.h") + calls + unused)))

    def call(name: str, x: Any) -> Any:
        x = np.ascontiguousarray(x, np.float32)
        y = np.empty_like(x)
        pointers = [ctypes.c_void_p(a.ctypes.data) for a in (x, y)]
        getattr(library, f"vector_{name}")(*pointers, ctypes.c_size_t(x.size))
        return y

    return call


def every(low: float, high: float) -> Any:
    """A sample of the floats between two magnitudes, of both signs, evenly spread over their bit
    patterns."""
    bits = np.linspace(*np.array([low, high], np.float32).view(np.uint32).astype(np.int64), 400_000).astype(np.uint32)
    positive = bits.view(np.float32)
    return np.concatenate([-positive, positive])


@pytest.mark.parametrize(
    ("name", "reference", "high", "bound"),
    [
        ("exponential", np.exp, 86.9, 2.0),
        ("tangent", np.tanh, 1e30, 3.0),
        ("error_function", None, 1e30, 3.0),
        ("logarithm", np.log, 3e38, 2.0),
        ("logarithm_of_1p", np.log1p, 3e38, 2.0),
    ],
)
def test_elementary_functions_keep_their_bounds(
    functions: Callable[[str, Any], Any], name: str, reference: Any, high: float, bound: float
) -> None:
    from math import erf

    x = every(1e-30, high)
    x = x[x > {"logarithm": 0.0, "logarithm_of_1p": -1.0}.get(name, -np.inf)]
    exact_values = (reference or np.vectorize(erf, otypes=[np.float64]))(x.astype(np.float64))
    ulp = np.spacing(np.abs(exact_values).astype(np.float32)).astype(np.float64)
    assert (np.abs(functions(name, x) - exact_values) / ulp).max() <= bound


def test_elementary_functions_at_the_ends(functions: Callable[[str, Any], Any]) -> None:
    x = np.array([-np.inf, -1e30, -88, -0.0, 0.0, 88.7, 89, 1e30, np.inf, np.nan], np.float32)
    exponential = functions("exponential", x)
    np.testing.assert_array_equal(exponential[[0, 1, 2, 3, 4, 6, 7, 8]], [0, 0, 0, 1, 1, np.inf, np.inf, np.inf])
    np.testing.assert_allclose(exponential[5], np.exp(np.float64(x[5])), 3e-7)
    for name in ("tangent", "error_function"):
        np.testing.assert_array_equal(functions(name, x)[:-1], [-1, -1, -1, 0, 0, 1, 1, 1, 1])
    assert all(np.isnan(functions(name, x)[-1]) for name in ("exponential", "tangent", "error_function"))


def test_logarithms_at_the_ends(functions: Callable[[str, Any], Any]) -> None:
    x = np.array([0.0, 1e-45, 1e-39, 1.0, np.inf, -1e-45, -1.0, -np.inf, np.nan], np.float32)
    with np.errstate(divide="ignore", invalid="ignore"):
        np.testing.assert_allclose(functions("logarithm", x), np.log(x.astype(np.float64)), 2e-7)
        np.testing.assert_allclose(functions("logarithm_of_1p", x), np.log1p(x.astype(np.float64)), 2e-7)


# ---------------------------------------------------------------- the source


def test_the_header_is_the_mugraph() -> None:
    graph, _ = mugraphs.attention_split_safe(masked=True)
    lines = generate_cpp(graph).splitlines()
    first = next(i for i, line in enumerate(lines) if line.startswith("//   def graph"))
    shown = [line.removeprefix("//   ") for line in lines[first:] if line.startswith("//   ")]
    assert parse_graph("\n".join(shown)) == graph


def loops(graph: Graph) -> str:
    """The first kernel's function without its head: its computation."""
    source = generate_cpp(graph)
    lines = source[source.index("// grid") : source.index('extern "C" size_t')].splitlines()
    return "\n".join(lines[next(i for i, line in enumerate(lines) if line == "  {") :])


def test_a_chain_stays_in_registers() -> None:
    graph, _ = pair(lambda x: term("mul", term("exp", x), term("relu", x)), (4, 32), (4,), (0,))
    assert (
        loops(graph)
        == """\
  {
    #pragma omp simd
    for (size_t i0 = 0; i0 < 32; ++i0) {
      const float v0 = t0[i0];
      const float v1 = exponential(v0);
      const float v2 = maximum(v0, 0.0f);
      const float v3 = v1 * v2;
      r0[i0] = v3;
    }
  }
}
"""
    )


def test_a_gate_is_one_quotient() -> None:
    graph, goal = pair(lambda x: term("swish", x), (4, 32), (4,), (0,))
    assert loops(graph).count(" / ") == 1
    assert loops(graph).count(" * ") == 0
    given = values(graph, 2, 40)
    given[graph.inputs[0]][0, :3] = (0, -200, 200)  # e^200 is no float
    assert computes(NativeKernel(graph, flags=STRICT), goal, given)


def test_what_is_dear_is_computed_once() -> None:
    """The exponentials of a softmax are computed with their sum, in one nest."""
    graph, _ = pair(lambda x: term("softmax", x, axis=1), (4, 32), (2,), (0,))
    shown = loops(graph)
    assert shown.count("exponential(") == 1
    assert shown.count("for (size_t i1") == 3


def test_what_has_no_code_says_so() -> None:
    x = leaf("X", "float32", 4, 6)
    with pytest.raises(Unsupported, match="cumulate"):
        generate_cpp(Graph((x,), (term("cumsum", x, axis=1),)))
    with pytest.raises(Unsupported, match="arctan"):
        generate_cpp(Graph((x,), (term("atan", x),)))
    b = variable("B", Tensor("bfloat16", (4, 6)))
    with pytest.raises(Unsupported, match="bfloat16"):
        generate_cpp(Graph((b,), (term("relu", b),)))
    with pytest.raises(InvalidOption, match="two words"):
        generate_cpp(Graph((x,), (term("relu", x),)), "two words")


def test_what_does_not_compile_is_named(tmp_path: Path) -> None:
    with pytest.raises(RuntimeUnavailable, match=r"failed: .*error"):
        build("this is no C++", tmp_path)
    assert build("int x;", tmp_path) == build("int x;", tmp_path)


# ---------------------------------------------------------------- sanitizers

MAIN = """
#include <cstdio>
#include <cstdlib>

int main() {
  const size_t in[] = {%s}, out[] = {%s};
  const void* inputs[%d];
  void* outputs[%d];
  for (size_t i = 0; i < %d; ++i) {
    float* x = static_cast<float*>(std::malloc(in[i] * sizeof(float)));
    for (size_t j = 0; j < in[i]; ++j) x[j] = 0.01f * static_cast<float>((j * 37 + i * 11) %% 101) - 0.3f;
    inputs[i] = x;
  }
  for (size_t i = 0; i < %d; ++i) outputs[i] = std::malloc(out[i] * sizeof(float));
  kernel(inputs, outputs, std::aligned_alloc(64, (kernel_scratch() + 63) / 64 * 64), nullptr, nullptr);
  for (size_t i = 0; i < %d; ++i)
    for (size_t j = 0; j < out[i]; ++j) std::printf("%%.9g\\n", static_cast<double>(static_cast<float*>(outputs[i])[j]));
}
"""


def vector_times_matrix(dtype: str) -> Pair:
    x, w, g = leaf("X", dtype, 37), leaf("W", dtype, 37, 603), leaf("G", dtype, 37)
    made = kernel([(x, (-1,), -1), (w, (1,), -1), (g, (-1,), -1)], weighed, (3,), 1, (0,))
    return Graph((x, w, g), (made,)), Graph((x, w, g), (weighed(x, w, g),))


def found_for_a_cpu(dtype: str) -> Pair:
    """The search's own: split over the summed label, and combined."""
    g = new_graph()
    x, w = g.new_input((1, 512), dtype, "X"), g.new_input((512, 96), dtype, "W")
    g.mark_output(g.matmul(g.rms_norm(x, g.new_input((512,), dtype, "G"), 1e-6), w))
    graphs = [each.graph for each in superoptimize(g.graph(), best=30, device=CPU_DEVICE)]
    return next(g for g in graphs if sum(n.op == "kernel" for n in g) == 2), g.graph()


CHECKED = {name: ODD[name] for name in ("rmsnorm_linear", "lora", "attention_split", "qknorm")} | {
    "moves": lambda dtype: pair(turned, (6, 3, 10), (3,), (0,)),
    "vector times matrix": vector_times_matrix,
    "rows times rows": lambda dtype: rows_times_rows(64, 197, 31, scores, dtype),
    "found for a cpu": found_for_a_cpu,
}


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=[pytest.mark.slow] * (n in ("lora", "qknorm"))) for n in CHECKED]
)
def test_no_sanitizer_complains(name: str, tmp_path: Path) -> None:
    """Inputs, outputs and scratch have exactly their sizes, on the heap."""
    graph, goal = CHECKED[name](dtype="float32")
    ins, outs = ([int(np.prod(x.shape)) for x in terms] for terms in (graph.inputs, graph.outputs))
    shown = [", ".join(map(str, sizes)) for sizes in (ins, outs)]
    main = MAIN % (*shown, len(ins), len(outs), len(ins), len(outs), len(outs))
    (tmp_path / "main.cpp").write_text(generate_cpp(graph) + main)
    flags = [*FLAGS, "-march=native", "-O0", "-g1", "-fsanitize=address,undefined", "-fno-sanitize-recover=all"]
    program = tmp_path / "main"
    subprocess.run([*compiler(), *flags, "-o", str(program), str(tmp_path / "main.cpp")], check=True)
    environment = {"ASAN_OPTIONS": "detect_leaks=0"}
    done = subprocess.run([str(program)], capture_output=True, text=True, env=environment)
    assert (done.returncode, done.stderr) == (0, "")
    given = {
        x: (0.01 * ((np.arange(n) * 37 + i * 11) % 101) - 0.3).astype(np.float32).reshape([int(d) for d in x.shape])
        for i, (x, n) in enumerate(zip(graph.inputs, ins, strict=True))
    }
    wanted = np.concatenate([w.ravel() for w in exact(goal, given)])
    found = np.array(done.stdout.split(), np.float64)
    assert np.abs(found - wanted).max() <= 1e-5 * np.abs(wanted).max()
