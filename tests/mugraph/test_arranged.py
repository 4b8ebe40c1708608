"""Weights of 8 bits that kernels for a GPU read along their sums: stored so in the model, each
once, and the same bits."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import in_turn
import ml_dtypes
import numpy as np
import onnx
import onnxruntime
import pytest
from fused_models import CONFIG, fresh_cache, kernels, on_the_cpu, quick
from numpy.typing import NDArray
from onnx import numpy_helper
from onnx_texts import built
from sample_regions import sample_regions

from taso_mirage.devices.cuda.device import H100, gpu
from taso_mirage.emit import triton
from taso_mirage.emit.compile import compiled
from taso_mirage.ir.dims import symbol
from taso_mirage.ir.model import Model
from taso_mirage.ir.terms import Graph, Node, Tensor, variable, weight
from taso_mirage.lowering import cuda as cuda
from taso_mirage.lowering.cuda import CudaLowering, everywhere
from taso_mirage.meanings.reals import REALS
from taso_mirage.measure import session as runtime
from taso_mirage.measure.session import Session, working_providers
from taso_mirage.measure.target import CUDA
from taso_mirage.mugraph.arranged import arranged, is_turned, turns
from taso_mirage.mugraph.free import free_sizes
from taso_mirage.mugraph.labels import label
from taso_mirage.mugraph.search import Search, SearchOptions
from taso_mirage.onnx_io import from_ir, from_proto, serialize
from taso_mirage.operators.interpret import interpret
from taso_mirage.operators.ops import term
from taso_mirage.pipeline import optimize_model
from taso_mirage.pipeline.fuse import fused, region_times, stage
from taso_mirage.pipeline.fuse import kinds as module
from taso_mirage.pipeline.fuse.kinds import _is_proved, variants
from taso_mirage.regions.batches import EqualRegions, resized
from taso_mirage.regions.free_regions import free_regions
from taso_mirage.report.result import Result
from taso_mirage.runtime.embed import EmbeddedRegion, embed
from taso_mirage.runtime.plan import cuda_kernel
from taso_mirage.targets.protocol import Trusted

pytestmark = pytest.mark.sampled(2)

GPU = CudaLowering(H100, "a stand-in for an H100 that turns weights", 90)
K, N = 256, 64
DYNAMIC = """(float[{rows},256] x) => (float[{rows},64] y, float[{rows},64] r)
{{ q, s, z = DynamicQuantizeLinear(x) p = MatMulInteger(q, w, z) f = Cast <to = 1>(p) t = Mul(s, u)
  m = Mul(f, t) y = Add(m, b) i = MatMulInteger(q, v, z) g = Cast <to = 1>(i) n = Mul(g, t) r = Relu(n) }}"""
SINGLE = """(float[16,256] x) => (float[16,64] y)
{ q, s, z = DynamicQuantizeLinear(x) p = MatMulInteger(q, w, z) f = Cast <to = 1>(p) t = Mul(s, u)
  m = Mul(f, t) y = Add(m, b) }"""
SHARED = """(float[16,256] x) => (float[16,64] y, float[16,64] r, int8[64] o)
{ q, s, z = DynamicQuantizeLinear(x) p = MatMulInteger(q, w, z) f = Cast <to = 1>(p) t = Mul(s, u)
  m = Mul(f, t) y = Relu(m) a = Abs(x) d, e, g = DynamicQuantizeLinear(a) h = MatMulInteger(d, w, g)
  j = Cast <to = 1>(h) k = Mul(e, u) l = Mul(j, k) r = Relu(l) c = Constant <value_int = 3>() o = Gather <axis = 0>(w, c) }"""
FLOAT8 = """(float16[16,256] x) => (float16[16,64] y)
{ q = QuantizeLinear(x, s, z) d = DequantizeLinear(q, s, z) e = DequantizeLinear(w8, t, z)
  m = MatMul(d, e) y = Add(m, c) }"""


def arrays() -> dict[str, NDArray[Any]]:
    rng = np.random.default_rng(0)
    return {
        "w": rng.integers(-128, 128, (K, N)).astype(np.int8),
        "v": rng.integers(-128, 128, (K, N)).astype(np.int8),
        "w8": rng.normal(size=(K, N)).astype(ml_dtypes.float8_e4m3fn),
        "u": (2.0 ** rng.integers(-12, -8, N)).astype(np.float32),
        "b": rng.normal(size=N).astype(np.float32),
        "c": rng.normal(size=N).astype(np.float16),
        "s": np.asarray(0.02, np.float16),
        "t": np.asarray(0.05, np.float16),
        "z": np.zeros((), ml_dtypes.float8_e4m3fn),
    }


def model(text: str) -> Model:
    made = {name for left in re.findall(r"([\w, ]+) =", text) for name in re.findall(r"\w+", left)}
    read = {n: v for n, v in arrays().items() if n not in made and re.search(rf"\b{n}\b", text)}
    return from_ir(from_proto(built(text, read)))


def kinds(text: str) -> tuple[Model, dict[EqualRegions, Any]]:
    given = model(text)
    found, out = sample_regions(given, {}, True)
    assert not out
    return given, found


# ---------------------------------------------------------------- which weights


def goal(left: str = "int8", right: str = "int8", perm: tuple[int, ...] | None = None) -> Graph:
    x, w = variable("x", Tensor(left, (16, K))), variable("w", Tensor(right, (K, N) if perm is None else (N, K)))
    return Graph((x, w), (term("matmul_integer", x, w if perm is None else term("transpose", w, perm=perm)),))


def test_weights_whose_sums_are_not_innermost_are_turned() -> None:
    w = weight("w", Tensor("int8", (K, N)))
    x = variable("x", Tensor("int8", (16, K)))
    assert turns(label(goal()), [x, w]) == {1: (1, 0)}
    assert turns(label(goal(perm=(1, 0))), [x, weight("w", Tensor("int8", (N, K)))]) == {}
    assert turns(label(goal()), [x, variable("w", Tensor("int8", (K, N)))]) == {}  # a run gives it


def test_what_is_multiplied_as_floats_is_not_turned() -> None:
    """The weight's numbers go through registers in any case."""
    x, w = variable("x", Tensor("float16", (16, K))), variable("w", Tensor("int8", (K, N)))
    s = variable("s", Tensor("float16", (N,)))
    product = Graph((x, w, s), (term("matmul", x, term("dequantize", w, s, dtype="float16", axis=1)),))
    assert turns(label(product), [x, weight("w", w.tensor), weight("s", s.tensor)]) == {}


@pytest.mark.parametrize(
    ("dtype", "rows", "perms"),
    [("float32", 64, {1: (1, 0)}), ("float32", 8, {}), ("float16", 64, {})],
)
def test_weights_of_single_precision_are_turned_for_many_rows(
    dtype: str, rows: int, perms: dict[int, tuple[int, ...]]
) -> None:
    x, w = variable("x", Tensor(dtype, (rows, K))), variable("w", Tensor(dtype, (K, N)))
    b = variable("b", Tensor(dtype, (N,)))
    product = Graph((x, w, b), (term("relu", term("add", term("matmul", x, w), b)),))
    assert turns(label(product), [x, weight("w", w.tensor), weight("b", b.tensor)]) == perms
    assert turns(label(product), [x, w, weight("b", b.tensor)]) == {}
    if perms:
        made = arranged(product, [x, weight("w", w.tensor), b])
        assert made is not None
        assert _is_proved(product, made)
        assert made.graph.inputs[1].shape == (N, K)


@pytest.mark.sampled(1)
def test_a_form_is_proved_and_another_order_is_not() -> None:
    """The weights are square, so that the types say nothing."""
    graph = layer_goal("int8", n=K)
    x, w, *others = graph.inputs
    made = arranged(graph, [x, weight("w", w.tensor), *others])
    assert made is not None
    assert _is_proved(graph, made)
    assert made.terms[1].type == w.type
    assert not _is_proved(graph, replace(made, terms=(x, w, *others)))


def test_a_product_that_is_stored_apart_has_its_weights_as_they_are() -> None:
    """A scatter has no labels: the new row of a cache is a product."""
    x, w = variable("x", Tensor("float16", (1, K))), variable("w", Tensor("float16", (K, N)))
    cache, at = variable("cache", Tensor("float16", (32, N))), variable("at", Tensor("int64", (1, 1)))
    graph = Graph((cache, at, x, w), (term("scatter_nd", cache, at, term("matmul", x, w)),))
    assert arranged(graph, [cache, at, x, weight("w", w.tensor)]) is None


def test_a_target_may_not_arrange_weights() -> None:
    _, found = kinds(DYNAMIC.format(rows=16))
    ((kind, sites),) = found.items()
    assert [len(variants(kind, sites, arranging)) for arranging in (True, False)] == [2, 1]


def test_equal_places_are_arranged_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """24 layers are one question; a place whose weight is computed is another one."""
    asked = list[object]()
    monkeypatch.setattr(module, "arranged", lambda goal, given: (asked.append(given), arranged(goal, given))[1])
    _, found = kinds(DYNAMIC.format(rows=16))
    ((kind, sites),) = found.items()
    other = replace(sites[0], inputs=tuple([variable(f"v{i}", x.tensor) for i, x in enumerate(sites[0].inputs)]))
    assert len(variants(kind, [*sites] * 24, True)) == 2
    assert len(asked) == 1
    assert len(variants(kind, [*sites, other], True)) == 1
    assert len(asked) == 3


@pytest.mark.sampled(1)
def test_wrong_sums_are_not_proved() -> None:
    _, found = kinds(DYNAMIC.format(rows=16))
    ((kind, sites),) = found.items()
    made = arranged(kind.goal, sites[0].inputs)
    assert made is not None
    assert _is_proved(kind.goal, made)
    *terms, first, second = made.terms
    assert first.type == second.type  # of the other weight
    assert not _is_proved(kind.goal, replace(made, terms=(*terms, second, first)))
    assert not _is_proved(kind.goal, replace(made, terms=(*terms, term("neg", first), second)))


# ---------------------------------------------------------------- in the stage


def prefers(patch: pytest.MonkeyPatch, seconds: float) -> None:
    """Kernels of turned weights take so long, others 1, the operators 2."""
    patch.setattr(
        region_times,
        "region_seconds",
        lambda graph, site, *others: (2.0, seconds if any(map(is_turned, site.inputs)) else 1.0),
    )


def stored(result: Result) -> dict[str, NDArray[Any]]:
    """The weights of more than a vector in the file."""
    proto = onnx.load_from_string(serialize(result.model))
    return {x.name: numpy_helper.to_array(x) for x in proto.graph.initializer if len(x.dims) > 1}


def staged(patch: pytest.MonkeyPatch, folder: Path, text: str, seconds: float = 0.5) -> tuple[Result, Result]:
    fresh_cache(patch, folder)
    quick(patch)
    prefers(patch, seconds)
    patch.setattr(stage, "here", lambda target: GPU)
    patch.setattr(cuda, "SHIPPED", (90,))
    patch.setattr(runtime, "open_in_child", on_the_cpu)
    config = replace(CONFIG, default_size=16)
    found = optimize_model(model(text), replace(config, measure=False, budget=0.0))
    result = replace(found, model=found.original, steps=(), changed=False, target=CUDA)
    return result, fused(result, config, "search")


@pytest.fixture(scope="module", params=[pytest.param(16, marks=pytest.mark.slow), "rows"])
def layer(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Result, Result]]:
    pytest.importorskip("triton", reason="the extra `triton` is not installed")
    with pytest.MonkeyPatch.context() as patch:
        yield staged(patch, tmp_path_factory.mktemp("cuda"), DYNAMIC.format(rows=request.param))


@pytest.mark.sampled(2)
def test_the_model_has_the_weights_turned_and_each_once(layer: tuple[Result, Result]) -> None:
    _, found = layer
    assert kernels(found) == 2, found.notes
    held = stored(found)
    turned, sums = (
        dict.fromkeys([f"{kind}_w", f"{kind}_v"], shape) for kind, shape in (("turned", (N, K)), ("sums", (1, N)))
    )
    assert {name: x.shape for name, x in held.items()} == turned | sums
    np.testing.assert_array_equal(held["turned_w"].T, arrays()["w"])
    np.testing.assert_array_equal(held["sums_v"], arrays()["v"].sum(0, dtype=np.int32, keepdims=True))
    assert held["sums_v"].dtype == np.int32
    assert all(d.passed for d in found.differences)
    assert any("2 weights are stored transposed" in note for note in found.notes)


def test_the_model_gives_the_same_bits_where_no_kernel_runs(layer: tuple[Result, Result], tmp_path: Path) -> None:
    """The runtime computes the transposes ahead, so that none is left in the optimized graph."""
    result, found = layer
    content = serialize(found.model)
    onnx.checker.check_model(content)
    inputs = {"x": np.random.default_rng(1).normal(size=(16, K)).astype(np.float32)}
    options = onnxruntime.SessionOptions()
    options.optimized_model_filepath = str(tmp_path / "ran.onnx")
    session = onnxruntime.InferenceSession(content, options, providers=["CPUExecutionProvider"])
    for got, wanted in zip(session.run(None, inputs), Session(serialize(result.original)).run(inputs), strict=True):
        np.testing.assert_array_equal(got, wanted)
    assert "Transpose" not in {n.op_type for n in onnx.load(tmp_path / "ran.onnx").graph.node}


@pytest.mark.sampled(2)
def test_a_form_that_is_slower_is_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("triton", reason="the extra `triton` is not installed")
    _, found = staged(monkeypatch, tmp_path, DYNAMIC.format(rows=16), 1.5)
    assert kernels(found) == 1
    assert set(stored(found)) == {"w", "v"}
    assert not any("transposed" in note for note in found.notes)


def test_a_weight_that_others_read_stays_and_is_turned_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("triton", reason="the extra `triton` is not installed")
    result, found = staged(monkeypatch, tmp_path, SHARED)
    assert [places for _, places in found.kernels[-1].kinds] == [2]  # perhaps after a predicted kernel
    assert sorted(stored(found)) == ["sums_w", "turned_w", "w"]
    content, calls = serialize(found.model), onnx.load_from_string(serialize(found.model)).graph.node
    assert sum("turned_w" in n.input for n in calls) == 2
    inputs = {"x": np.random.default_rng(1).normal(size=(16, K)).astype(np.float32)}
    for got, wanted in zip(*(Session(c).run(inputs) for c in (content, serialize(result.original))), strict=True):
        np.testing.assert_array_equal(got, wanted)


def test_weights_of_float8_are_turned_too() -> None:
    """QDQ: a quantizer, and the products of its result with dequantized weights."""
    given, found = kinds(FLOAT8)
    ((kind, sites),) = found.items()
    _, other = variants(kind, sites, True)
    assert [x.shape for x in other.kind.goal.inputs if x.dtype == "float8_e4m3fn" and x.shape] == [(16, K), (N, K)]
    made = embed(given, [EmbeddedRegion(s.inputs, s.outputs, planned(other.kind.goal)) for s in other.sites])
    held = {name: x.numpy() for name, x in made.weights.items() if name.startswith("turned")}
    np.testing.assert_array_equal(held["turned_w8"].astype(np.float32).T, arrays()["w8"].astype(np.float32))
    assert "w8" not in made.weights


def planned(graph: Graph, capability: int = 90) -> Any:
    pytest.importorskip("triton", reason="the extra `triton` is not installed")
    program = Search(graph, SearchOptions()).run(1, 60.0)[0].program()
    return cuda_kernel(program, everywhere(program, capability, ()), [])


@pytest.mark.skipif("CUDAExecutionProvider" not in working_providers(), reason="needs a GPU")
@pytest.mark.parametrize("text", [SINGLE, FLOAT8])
def test_a_kernel_reads_arranged_weights_on_a_gpu(text: str) -> None:
    device = gpu()
    assert device is not None
    given, found = kinds(text)
    ((kind, sites),) = found.items()
    _, other = variants(kind, sites, True)
    planned_here = planned(other.kind.goal, device.capability)
    made = embed(given, [EmbeddedRegion(s.inputs, s.outputs, planned_here) for s in other.sites])
    dtype = np.float16 if text == FLOAT8 else np.float32
    inputs = {"x": np.random.default_rng(1).normal(size=(16, K)).astype(dtype)}
    (got,) = Session(Trusted(serialize(made)), CUDA).run(inputs)
    (wanted,) = Session(serialize(given, source=True)).run(inputs)
    assert np.linalg.norm(got - wanted) < (1e-2 if text == FLOAT8 else 1e-6) * np.linalg.norm(wanted)


def test_a_region_at_other_sizes_has_its_weights_turned() -> None:
    given = model(DYNAMIC.format(rows="rows"))
    found, out = free_regions(given, {"rows": 16}, 4, True)
    assert not out
    ((kind, sites),) = found.items()
    assert kind.free is not None
    _, other = variants(kind, sites, True)
    for rows in (1, 32):
        graph = resized(other.sites[0], {"rows": rows})
        assert [x.shape for x in graph.inputs if len(x.shape) > 1] == [(rows, K), (N, K), (N, K), (1, N), (1, N)]
        plain = resized(sites[0], {"rows": rows})
        rng = np.random.default_rng(0)
        values = [drawn(x, rng) for x in plain.inputs]
        *read, _, _ = graph.inputs
        others = [v.T if x.shape == (N, K) else v for x, v in zip(read, values, strict=True)]
        others += [np.zeros((1, N), np.int32)] * 2  # which only kernels read
        for a, b in zip(ran(graph, others), ran(plain, values), strict=True):
            np.testing.assert_array_equal(a, b)


def drawn(node: Node, rng: np.random.Generator) -> NDArray[Any]:
    if node.dtype in ("int8", "uint8"):
        ends = np.iinfo(node.dtype)
        return np.asarray(rng.integers(ends.min, ends.max + 1, node.shape)).astype(node.dtype)
    return np.asarray(rng.normal(size=node.shape)).astype(node.dtype)


def ran(graph: Graph, values: list[NDArray[Any]]) -> list[Any]:
    found = interpret(graph.outputs, REALS, dict(zip(graph.inputs, values, strict=True)))
    return [found[o] for o in graph.outputs]


# ---------------------------------------------------------------- programs


def layer_goal(left: str = "uint8", rows: int = 16, k: int = K, n: int = N) -> Graph:
    """x w less the zero of x, scaled, and a bias."""
    x, w = variable("x", Tensor(left, (rows, k))), variable("w", Tensor("int8", (k, n)))
    s, u, t = (variable(name, Tensor("float32", shape)) for name, shape in (("s", ()), ("u", (n,)), ("t", (n,))))
    zero = [variable("z", Tensor("uint8", ()))] if left == "uint8" else []
    total = term("cast", term("matmul_integer", x, w, *zero), to="float32")
    return Graph((x, w, s, u, t, *zero), (term("add", term("mul", total, term("mul", s, u)), t),))


def arranged_goal(graph: Graph) -> Graph:
    """The goal over arranged weights."""
    made = arranged(graph, [weight("w", x.tensor) if x.attr("name") == "w" else x for x in graph.inputs])
    assert made is not None
    assert _is_proved(graph, made)
    return made.graph


def arranged_values(graph: Graph, given: list[NDArray[Any]]) -> list[NDArray[Any]]:
    made = arranged(graph, [weight("w", x.tensor) if x.attr("name") == "w" else x for x in graph.inputs])
    assert made is not None
    found = interpret(made.terms, REALS, dict(zip(graph.inputs, given, strict=True)))
    return [np.ascontiguousarray(found[x]) for x in made.terms]


def values(graph: Graph) -> list[NDArray[Any]]:
    """Scales are powers of two, and biases whole numbers of them, so that nothing rounds."""
    rng = np.random.default_rng(3)
    made = [drawn(x, rng) for x in graph.inputs]
    names = [x.attr("name") for x in graph.inputs]
    return [
        np.asarray(2.0 ** rng.integers(-6, -2, v.shape) if name in "su" else np.rint(4 * v) / 4 if name == "t" else v)
        .astype(v.dtype)
        .reshape(v.shape)
        for name, v in zip(names, made, strict=True)
    ]


def exact(given: list[NDArray[Any]]) -> NDArray[Any]:
    x, w, s, u, t, *zero = given
    total = (x.astype(np.int64) - (zero[0].astype(np.int64) if zero else 0)) @ w.astype(np.int64)
    return np.asarray(total.astype(np.float32) * (s * u) + t)


@pytest.mark.sampled(3)
@pytest.mark.parametrize("left", ["uint8", "int8"])
def test_programs_give_every_bit_at_any_number_of_rows(left: str, tmp_path: Path) -> None:
    pytest.importorskip("triton", reason="the extra `triton` is not installed")
    graph = arranged_goal(layer_goal(left))
    n0 = symbol("n0")
    names = free_sizes([(n0, K), *(x.shape for x in graph.inputs[1:])], [(n0, N)])
    found = Search(graph, SearchOptions(), free=names).run(1, 60.0)[0]
    assert found.free is not None
    source = triton.program(found.free).source
    at = {rows: layer_goal(left, rows) for rows in (1, 16, 37)}
    runs = {f"rows_{rows}": (source, arranged_goal(g), arranged_values(g, values(g))) for rows, g in at.items()}
    in_turn.interpreted(tmp_path, runs)
    for rows, g in at.items():
        np.testing.assert_array_equal(np.load(tmp_path / f"rows_{rows}.npy"), exact(values(g)))


TURNING = re.compile(r"^\s*(prmt|st\.shared|shfl\.sync\.bfly)\b", re.MULTILINE)


def looped(ptx: str) -> str:
    """The lines of the innermost loop."""
    back = [
        m for m in re.finditer(r"bra(?:\.uni)?\s+(\$\w+);", ptx) if ptx.find(f"\n{m.group(1)}:") in range(m.start())
    ]
    return min((ptx[ptx.find(f"\n{m.group(1)}:") : m.end()] for m in back), key=len)


@pytest.mark.parametrize(
    ("left", "rows"),
    [
        ("int8", 16),
        ("int8", 256),
        *(pytest.param("int8", rows, marks=pytest.mark.slow) for rows in (64, 1024)),
        ("uint8", 256),
    ],
)
def test_no_tile_is_turned_in_registers(left: str, rows: int) -> None:
    """The tensor cores read both operands from shared memory as they are."""
    pytest.importorskip("triton", reason="the extra `triton` is not installed")
    goal = layer_goal(left, rows, 4096, 4096)
    ptx = {}
    for name, graph in (("along", arranged_goal(goal)), ("across", goal)):
        program = Search(graph, SearchOptions()).run(1, 60.0)[0].program()
        ptx[name] = looped(compiled(program, 90)[0].ptx)
        assert "mma" in ptx[name]
    assert not TURNING.search(ptx["along"])
    assert TURNING.search(ptx["across"])
