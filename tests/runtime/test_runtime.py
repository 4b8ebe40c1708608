"""Kernels inside models: they run in ONNX Runtime on its own threads, match the functions of their
names, and refuse operands that do not fit."""

from __future__ import annotations

import ctypes
import subprocess
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import mugraphs
import numpy as np
import onnx
import onnxruntime
import pytest
from mugraphs import Pair, kernel, leaf
from stored_goals import apart, goals

from taso_mirage.devices.cpu import compiler as compilers
from taso_mirage.devices.cpu.device import CPU_DEVICE
from taso_mirage.errors import IllTyped, InvalidModel, RuntimeUnavailable, Unsupported
from taso_mirage.ir.dims import symbol
from taso_mirage.ir.model import Model, StoredWeight
from taso_mirage.ir.terms import Graph, Node, Tensor, constant, substitute, variable, weight
from taso_mirage.mugraph.search import superoptimize
from taso_mirage.onnx_io import from_proto, load, save, serialize
from taso_mirage.onnx_io.build import standalone
from taso_mirage.onnx_io.read import from_ir
from taso_mirage.operators.ops import term
from taso_mirage.runtime import build_kernels, carries_kernels, compilation, library, register
from taso_mirage.runtime.embed import NAMES, EmbeddedRegion, embed
from taso_mirage.runtime.plan import PlannedNode, cpu_kernel, sealed
from taso_mirage.runtime.register import PLAN_FORMAT, metadata

Arrays = Mapping[str, Any]


def gelu_chain(rows: int = 6, inner: int = 5, grid: int = 3, *, dtype: str = "float32") -> Pair:
    """gelu(X + b) * Y."""
    x, b, y = leaf("X", dtype, rows, inner), leaf("b", dtype, inner), leaf("Y", dtype, rows, inner)

    def body(x: Node, b: Node, y: Node) -> Node:
        return term("mul", term("gelu", term("add", x, b)), y)

    made = kernel([(x, (0,), -1), (b, (-1,), -1), (y, (0,), -1)], body, (grid,), 1, (0,))
    return Graph((x, b, y), (made,)), Graph((x, b, y), (body(x, b, y),))


CASES: dict[str, Callable[..., Pair]] = {
    "gelu chain": gelu_chain,
    "rmsnorm_linear": partial(mugraphs.rmsnorm_linear, gamma=True, bias=True, dtype="float32"),
    "masked softmax": partial(mugraphs.attention_safe, masked=True, dtype="float32"),
    "split": partial(mugraphs.attention_split_safe, masked=True, dtype="float32"),
    "half": partial(mugraphs.ntrans, dtype="float16"),
}
TOLERANCE = {"float32": 1e-5, "float16": 4e-3}


def model_of(pair: Pair) -> tuple[Model, EmbeddedRegion]:
    """relu of a muGraph's result, and the muGraph's region in it."""
    graph, goal = pair
    around = Graph(goal.inputs, tuple(term("relu", o) for o in goal.outputs))
    return standalone(around, {"": 20}), EmbeddedRegion.of(goal, goal.inputs, cpu_kernel(graph))


def embedded(pair: Pair) -> bytes:
    model, region = model_of(pair)
    return serialize(embed(model, [region]))


def opened(content: bytes, *, kernels: bool = True, threads: int = 2, **options: Any) -> Any:
    settings = onnxruntime.SessionOptions()
    settings.log_severity_level = 4
    settings.intra_op_num_threads = threads
    if kernels:
        register(settings, content, **options)
    return onnxruntime.InferenceSession(content, settings, providers=["CPUExecutionProvider"])


def feed_of(inputs: Sequence[Node], seed: int = 0) -> Arrays:
    rng = np.random.default_rng(seed)
    return {x.attr("name"): rng.standard_normal([int(n) for n in x.shape]).astype(x.dtype) for x in inputs}


def operators(session: Any, tmp_path: Path) -> set[str]:
    """The operators that really ran, by the runtime's profile."""
    import json

    return {
        e["args"]["op_name"]
        for e in json.loads(Path(session.end_profiling()).read_text())
        if "op_name" in e.get("args", {})
    }


# ---------------------------------------------------------------- kernel and function


@pytest.mark.sampled(2)
@pytest.mark.parametrize("name", CASES)
def test_kernel_and_function_compute_the_same(name: str) -> None:
    pair = CASES[name]()
    content, feed = embedded(pair), feed_of(pair[1].inputs)
    onnx.checker.check_model(content)
    wanted = opened(content, kernels=False).run(None, feed)
    for threads in (1, 3):
        found = opened(content, threads=threads).run(None, feed)
        for a, b in zip(found, wanted, strict=True):
            assert a.shape == b.shape
            assert a.dtype == b.dtype
            np.testing.assert_allclose(a, b, rtol=0, atol=TOLERANCE[a.dtype.name] * np.abs(b).max())


@pytest.mark.parametrize("kernels", [False, True])
def test_the_kernel_runs_where_the_library_is_and_the_function_elsewhere(kernels: bool, tmp_path: Path) -> None:
    content = embedded(CASES["rmsnorm_linear"]())
    settings = onnxruntime.SessionOptions()
    settings.enable_profiling, settings.profile_file_prefix = True, str(tmp_path / "profile")
    if kernels:
        register(settings, content)
    session = onnxruntime.InferenceSession(content, settings, providers=["CPUExecutionProvider"])
    session.run(None, feed_of(CASES["rmsnorm_linear"]()[1].inputs))
    ran = operators(session, tmp_path)
    assert ("CpuKernel0" in ran) == kernels
    assert ("Sqrt" in ran) != kernels


def test_a_kernel_that_a_function_calls_runs(tmp_path: Path) -> None:
    """Functions call kernels for CUDA so, to have their code in the file once."""
    model, region = model_of(CASES["rmsnorm_linear"]())
    other = replace(region.kernel, images=(b"none",))
    content, feed = serialize(embed(model, [replace(region, kernel=other)])), feed_of(model.graph.inputs)
    settings = onnxruntime.SessionOptions()
    settings.enable_profiling, settings.profile_file_prefix = True, str(tmp_path / "profile")
    register(settings, content, cuda=False)
    session = onnxruntime.InferenceSession(content, settings, providers=["CPUExecutionProvider"])
    (found,) = session.run(None, feed)
    np.testing.assert_allclose(found, opened(content, kernels=False).run(None, feed)[0], rtol=1e-5, atol=1e-5)
    assert operators(session, tmp_path) == {"CpuKernel0", "Relu"}


SHARED = r"""
#include <atomic>
#include <cstddef>
#include <thread>
extern "C" const char kernel_both_types[] = "float32 2, -> float32 2,";
extern "C" size_t kernel_both_scratch() { return 1; }
static std::atomic<int> arrived{0};
static void block(void* data, size_t i) {
  arrived.fetch_add(1);
  while (arrived.load() < 2) std::this_thread::yield();  // for ever, where one thread runs both blocks
  void** tensors = static_cast<void**>(data);
  static_cast<float*>(tensors[1])[i] = 2 * static_cast<const float*>(tensors[0])[i];
}
typedef void (*parallel_for)(void (*)(void*, size_t), size_t, void*, void*);
extern "C" void kernel_both(const void** inputs, void** outputs, void*, parallel_for parallel, void* pool) {
  void* tensors[] = {const_cast<void*>(inputs[0]), outputs[0]};
  parallel(block, 2, tensors, pool);
}
"""


def test_blocks_run_on_several_of_the_runtimes_threads() -> None:
    two = Tensor("float32", (2,))
    lines = ["taso_mirage 1 cpu", "input float32 2", "output float32 2", "entry kernel_both"]
    made = PlannedNode("cpu", "kernel_both", (two,), (two,), sealed(lines), SHARED)
    x = leaf("X", "float32", 2)
    double = term("add", x, x)
    content = serialize(embed(standalone(Graph((x,), (double,)), {"": 17}), [EmbeddedRegion((x,), (double,), made)]))
    (found,) = opened(content, threads=2).run(None, {"X": np.array([1, 2], np.float32)})
    np.testing.assert_array_equal(found, [2, 4])


SCALAR = r"""
#include <cstddef>
extern "C" const char kernel_scalar_types[] = "float32, -> float32,";
extern "C" size_t kernel_scalar_scratch() { return 100; }
extern "C" void kernel_scalar(const void** inputs, void** outputs, void* scratch, void*, void*) {
  static_cast<float*>(scratch)[24] = *static_cast<const float*>(inputs[0]);
  *static_cast<float*>(outputs[0]) = 2 * static_cast<float*>(scratch)[24];
}
"""


@pytest.mark.parametrize("arena", [True, False])
def test_scalars_and_scratch_memory_with_and_without_an_arena(arena: bool) -> None:
    x = leaf("X", "float32")
    lines = ["taso_mirage 1 cpu", "input float32", "output float32", "entry kernel_scalar"]
    made = PlannedNode("cpu", "kernel_scalar", (x.tensor,), (x.tensor,), sealed(lines), SCALAR)
    double = term("add", x, x)
    content = serialize(embed(standalone(Graph((x,), (double,)), {"": 17}), [EmbeddedRegion((x,), (double,), made)]))
    options = onnxruntime.SessionOptions()
    options.enable_cpu_mem_arena = arena
    register(options, content)
    session = onnxruntime.InferenceSession(content, options, providers=["CPUExecutionProvider"])
    for _ in range(20):
        (found,) = session.run(None, {"X": np.array(3, np.float32)})
        assert found.shape == ()
        assert found == 6


def test_sessions_and_threads_share_nothing_and_leave_nothing_behind() -> None:
    pair = mugraphs.attention_split_safe(heads=4, queries=16, width=64, keys=48, blocks=2, splits=8, dtype="float32")
    content = embedded(pair)
    sessions = [opened(content) for _ in range(3)]
    feeds = [feed_of(pair[1].inputs, seed) for seed in range(4)]
    wanted = [sessions[0].run(None, feed)[0] for feed in feeds]

    def one(i: int) -> None:
        np.testing.assert_array_equal(sessions[i % 3].run(None, feeds[i % 4])[0], wanted[i % 4])

    def resident() -> int:
        return int(Path("/proc/self/statm").read_text().split()[1]) * 4096

    with ThreadPoolExecutor(4) as workers:
        list(workers.map(one, range(400)))
        before = resident()
        list(workers.map(one, range(4000)))
    assert resident() - before < 20e6  # every run has 140 KB of scratch memory: 560 MB in all


def test_a_chain_of_equal_regions_has_one_function() -> None:
    graph, goal = mugraphs.ntrans(dtype="float32")
    x, *others = goal.inputs
    regions, last = [], x
    for _ in range(3):
        regions.append(EmbeddedRegion.of(goal, (last, *others), cpu_kernel(graph)))
        (last,) = regions[-1].outputs
    model = standalone(Graph(goal.inputs, (last,)), {"": 17})
    made = embed(model, regions[::-1])
    proto = onnx.load_from_string(serialize(made))
    assert [n.op_type for n in proto.graph.node] == ["CpuKernel0"] * 3
    assert [f.name for f in proto.functions] == ["CpuKernel0"]
    content, feed = proto.SerializeToString(), feed_of(goal.inputs)
    (found,), (wanted,) = opened(content).run(None, feed), opened(serialize(model), kernels=False).run(None, feed)
    np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-5)


@pytest.mark.sampled(3)
def test_what_the_search_finds_runs_in_a_model_with_names_and_weights() -> None:
    """relu(X) W + bias, then softmax of its scaled sum with a mask: only the softmax is a
    region."""
    text = """
        <ir_version: 8, opset_import: ["" : 17]>
        around (float[6, 8] tokens, float[6, 40] mask) => (float[6, 40] weights, float[6, 40] scores)
        <float[8, 40] W, float[40] bias>
        {
            positive = Relu(tokens)
            product = MatMul(positive, W)
            scores = Add(product, bias)
            quarter = Constant<value_float = 0.25>()
            scaled = Mul(scores, quarter)
            masked = Add(scaled, mask)
            weights = Softmax<axis = 1>(masked)
        }
    """
    proto = onnx.parser.parse_model(text)
    rng = np.random.default_rng(1)
    proto.graph.ClearField("initializer")
    for name, shape in (("W", (8, 40)), ("bias", (40,))):
        proto.graph.initializer.append(
            onnx.numpy_helper.from_array(rng.standard_normal(shape).astype(np.float32), name)
        )
    model = from_ir(from_proto(proto))
    weights, scores = model.graph.outputs
    mask = model.graph.inputs[1]
    leaves = leaf("S", "float32", 6, 40), leaf("M", "float32", 6, 40)
    goal = Graph(leaves, substitute((weights,), {scores: leaves[0], mask: leaves[1]}))
    found = superoptimize(goal, best=1, device=CPU_DEVICE)[0]
    made = embed(model, [EmbeddedRegion.of(found.goal, (scores, mask), cpu_kernel(found.graph))])
    content = serialize(made)
    written = onnx.load_from_string(content)
    assert [n.op_type for n in written.graph.node] == ["Relu", "MatMul", "Add", "CpuKernel0"]
    assert written.graph.node[-1].name == "CpuKernel0/weights"
    assert [n.output[0] for n in written.graph.node] == ["positive", "product", "scores", "weights"]
    assert [n.op_type for n in written.functions[0].node] == ["Constant", "Mul", "Add", "Softmax"]
    assert {w.name for w in written.graph.initializer} == {"W", "bias"}
    feed = feed_of(model.graph.inputs)
    for a, b in zip(
        opened(content).run(None, feed), opened(proto.SerializeToString(), kernels=False).run(None, feed), strict=True
    ):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)


def test_regions_that_differ_in_a_constant_have_their_own_kernels() -> None:
    x = leaf("X", "float32", 4, 100)
    tables = [(np.arange(100) + (np.arange(100) == 50) * i).astype(np.float32) for i in range(2)]
    regions = []
    for table in tables:
        factor = constant(table)
        made = kernel([(x, (0,), -1)], partial(term, "mul", factor), (2,), 1, (0,))
        goal = Graph((x,), (term("mul", x, factor),))
        regions.append(EmbeddedRegion.of(goal, (x,), cpu_kernel(Graph((x,), (made,)))))
    model = standalone(Graph((x,), tuple(r.outputs[0] for r in regions)), {"": 17})
    content, feed = serialize(embed(model, regions)), feed_of((x,))
    assert len(onnx.load_from_string(content).functions) == 2
    for kernels in (True, False):
        for found, table in zip(opened(content, kernels=kernels).run(None, feed), tables, strict=True):
            np.testing.assert_array_equal(found, feed["X"] * table)


def test_several_outputs_and_regions_that_differ() -> None:
    x, y = leaf("X", "float32", 4, 6), leaf("Y", "float32", 4, 6)
    total, product = term("add", x, y), term("mul", x, y)

    def body(x: Node, y: Node) -> tuple[Node, ...]:
        return term("add", x, y), term("mul", x, y)

    both = mugraphs.parts(kernel([(x, (0,), -1), (y, (0,), -1)], body, (2,), 1, (0,), (0,)))
    model = standalone(Graph((x, y), (term("div", total, product),)), {"": 17})
    last = model.graph.outputs[0]
    s, p = variable("S", total.tensor), variable("P", product.tensor)
    ratio = kernel([(s, (0,), -1), (p, (0,), -1)], lambda s, p: term("div", s, p), (4,), 1, (0,))
    regions = [
        EmbeddedRegion((total, product), (last,), cpu_kernel(Graph((s, p), (ratio,)))),
        EmbeddedRegion((x, y), (total, product), cpu_kernel(Graph((x, y), tuple(both)))),
    ]
    content, feed = serialize(embed(model, regions)), feed_of((x, y))
    assert sorted(f.name for f in onnx.load_from_string(content).functions) == ["CpuKernel0", "CpuKernel1"]
    (found,), (plain,) = opened(content).run(None, feed), opened(content, kernels=False).run(None, feed)
    np.testing.assert_allclose(found, (feed["X"] + feed["Y"]) / (feed["X"] * feed["Y"]), rtol=1e-5)
    np.testing.assert_allclose(plain, found, rtol=1e-5)


def test_an_embedded_model_is_read_and_written_again(tmp_path: Path) -> None:
    pair = CASES["masked softmax"]()
    content, feed = embedded(pair), feed_of(pair[1].inputs)
    (tmp_path / "first.onnx").write_bytes(content)
    save(load(tmp_path / "first.onnx", trust_kernels=True), tmp_path / "again.onnx")
    again = (tmp_path / "again.onnx").read_bytes()
    assert metadata(tmp_path / "again.onnx") == metadata(content)
    np.testing.assert_array_equal(opened(again).run(None, feed)[0], opened(content).run(None, feed)[0])
    np.testing.assert_array_equal(
        opened(again, kernels=False).run(None, feed)[0], opened(content, kernels=False).run(None, feed)[0]
    )


# ---------------------------------------------------------------- sizes


def mixed(rows: str | int, around: str) -> bytes:
    """A kernel of fixed sizes beside a relu over `around` rows; no shape but the inputs' is
    declared."""
    graph, goal = mugraphs.ntrans(dtype="float32")
    proto = onnx.load_from_string(
        serialize(embed(standalone(goal, {"": 17}), [EmbeddedRegion(goal.inputs, goal.outputs, cpu_kernel(graph))]))
    )
    proto.graph.input[0].type.tensor_type.shape.dim[0].Clear()
    dim = proto.graph.input[0].type.tensor_type.shape.dim[0]
    dim.dim_param, dim.dim_value = (rows, 0) if isinstance(rows, str) else ("", rows)
    if isinstance(rows, str):
        dim.dim_param = rows
    batch = onnx.helper.make_tensor_value_info("batch", onnx.TensorProto.FLOAT, [around, 5])
    proto.graph.input.append(batch)
    proto.graph.node.append(onnx.helper.make_node("Relu", ["batch"], ["rest"]))
    proto.graph.output.append(onnx.helper.make_tensor_value_info("rest", onnx.TensorProto.FLOAT, None))
    proto.graph.output[0].type.tensor_type.ClearField("shape")
    return bytes(proto.SerializeToString())


def test_shapes_are_inferred_and_named_sizes_stay() -> None:
    found = {o.name: o.shape for o in opened(mixed(6, "tokens")).get_outputs()}
    assert found == {"output_0": [6, 5], "rest": ["tokens", 5]}


def test_a_size_that_the_kernel_was_not_made_for_is_refused_when_it_runs() -> None:
    content = mixed("rows", "tokens")
    rows = {"X": 7, "H": 6, "alpha": 0}
    feed = {k: np.ones((n, 5) if n else 5, np.float32) for k, n in rows.items()} | {
        "batch": np.ones((2, 5), np.float32)
    }
    with pytest.raises(
        Exception,
        match=r"node 'CpuKernel0/0' \(taso_mirage.CpuKernel0\): dimension 0 of input 0 is 7, .* made for 6; load the model without",
    ):
        opened(content).run(None, feed)


def free(*shapes: tuple[int | str, ...]) -> tuple[Model, EmbeddedRegion]:
    """exp(X + Y) and X * Y, whose shapes may have names, and a kernel for both at six rows."""
    x, y = (
        variable(n, Tensor("float32", tuple(symbol(d) if isinstance(d, str) else d for d in s)))
        for n, s in zip("XY", shapes, strict=True)
    )

    def body(x: Node, y: Node) -> tuple[Node, ...]:
        return term("exp", term("add", x, y)), term("mul", x, y)

    a, b = leaf("X", "float32", 6, 4), leaf("Y", "float32", 6, 4)
    both = mugraphs.parts(kernel([(a, (0,), -1), (b, (0,), -1)], body, (2,), 1, (0,), (0,)))
    outputs = body(x, y)
    return standalone(Graph((x, y), outputs), {"": 17}), EmbeddedRegion(
        (x, y), outputs, cpu_kernel(Graph((a, b), tuple(both)))
    )


@pytest.mark.sampled(2)
@pytest.mark.parametrize("kernels", [True, False])
def test_a_kernel_runs_at_its_sizes_and_the_operators_at_others(kernels: bool) -> None:
    model, region = free(("rows", 4), ("rows", 4))
    content = serialize(embed(model, [region], {"rows": 6}))
    onnx.checker.check_model(content)
    session = opened(content, kernels=kernels)
    rng = np.random.default_rng(0)
    for rows, others in (
        (6, 6),
        (5, 5),
        (1, 1),
        (6, 1),
        (1, 6),
        (60, 60),
    ):  # a runtime takes both of (6, 1): they broadcast
        x, y = (rng.standard_normal((n, 4)).astype(np.float32) for n in (rows, others))
        total, product = session.run(None, {"X": x, "Y": y})
        np.testing.assert_allclose(total, np.exp(x + y), rtol=1e-5)
        np.testing.assert_allclose(product, x * y, rtol=1e-6)


def test_sizes_that_a_run_cannot_tell_are_refused() -> None:
    model, region = free(("rows", 4), ("rows", 4))
    for sizes in ({}, {"rows": 5}, {"other": 6}):
        with pytest.raises(IllTyped, match=r"input 0 of a region, input, is .*; sizes must be fixed, or given"):
            embed(model, [region], sizes)
    with pytest.raises(Unsupported, match="the dim 'batch' is no dim of an input alone"):
        embed(model, [region], {"rows": 6, "batch": 2})


# ---------------------------------------------------------------- CUDA nodes on a CPU


def test_a_node_for_cuda_runs_its_function_on_a_cpu() -> None:
    graph, goal = mugraphs.ntrans(dtype="float32")
    model, region = model_of((graph, goal))
    lines = ["taso_mirage 1 cuda", "input float32 6 5", "kernel 1 1 1 i0", "image 0 90 cubin k 4 0 2 0 4 00000000"]
    other = replace(region.kernel, target="cuda", plan=sealed(lines), images=(b"none",))
    content, feed = serialize(embed(model, [replace(region, kernel=other)])), feed_of(goal.inputs)
    proto = onnx.load_from_string(content)
    assert [n.op_type for n in proto.graph.node] == [other.entry, "Relu"]
    assert [f.name for f in proto.functions] == ["CudaKernel0", other.entry]
    assert [n.op_type for n in proto.functions[1].node] == ["CudaKernel0"]
    (wanted,) = opened(serialize(model), kernels=False).run(None, feed)
    np.testing.assert_array_equal(opened(content, cuda=False).run(None, feed)[0], wanted)
    np.testing.assert_array_equal(opened(content, kernels=False).run(None, feed)[0], wanted)


# ---------------------------------------------------------------- refusals when a session is created


def tampered(**changes: str | None) -> bytes:
    """A model whose node has other attributes, inputs or outputs than were written."""
    proto = onnx.load_from_string(embedded(mugraphs.ntrans(dtype="float32")))
    node = next(n for n in proto.graph.node if n.op_type == "CpuKernel0")
    node.name = "the node"
    (plan,) = [a for a in node.attribute if a.name == "plan"]
    node.attribute.remove(plan)
    text = changes.get("plan", plan.s.decode())
    if text is not None:
        node.attribute.append(onnx.helper.make_attribute("plan", text))
    return bytes(proto.SerializeToString())


def plan_of(*changes: tuple[str, str]) -> str:
    made = cpu_kernel(mugraphs.ntrans(dtype="float32")[0]).plan
    text = "\n".join(made.splitlines()[:-1])
    for old, new in changes:
        assert old in text
        text = text.replace(old, new)
    return sealed(text.splitlines())


FOR_CUDA = "input float32 6 5", "output float32 6 5", "kernel 1 1 1 i0 o0", "image 0 90 ptx k 1 0 0 0 1 00000000"
REFUSED = {
    "no plan": (None, "no text attribute 'plan'; optimize the model again"),
    "another format": (plan_of(("taso_mirage 1", "taso_mirage 2")), "has format 2, this library reads 1; update taso-mirage"),
    "a changed plan": (plan_of().replace("6 5", "6 6", 1), "the plan's checksum is .*, not '.*': it was changed"),
    "a truncated plan": (plan_of()[:-20], "it is truncated"),
    "more than it writes": (plan_of(("output float32 6 5", "output float32 6 4")), "computes .* the plan says .* it was changed"),
    "another kernel": (plan_of(("entry kernel_", "entry other_")), "is not compiled; call taso_mirage.register"),
    "another target": (sealed(["taso_mirage 1 cuda", *FOR_CUDA]), "its plan is for cuda, the node runs on the CPU"),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_a_tampered_node_is_refused_with_its_name(name: str) -> None:
    plan, message = REFUSED[name]
    with pytest.raises(Exception, match=rf"node 'the node' \(taso_mirage.CpuKernel0\): .*{message}"):
        opened(tampered(plan=plan))


def test_a_tampered_kernel_in_a_function_is_refused() -> None:
    model, region = free(("rows", 4), ("rows", 4))
    proto = onnx.load_from_string(serialize(embed(model, [region], {"rows": 6})))
    (chosen,) = [f for f in proto.functions if f.name == region.kernel.entry]
    (node,) = chosen.node[0].attribute[0].g.node
    (plan,) = node.attribute
    plan.s = plan.s.replace(b"6 4", b"6 5", 1)
    with pytest.raises(Exception, match=rf"{region.kernel.entry}.*(the plan's checksum|type inference failed)"):
        opened(proto.SerializeToString())


@pytest.mark.parametrize("field", ["input", "output"])
def test_a_node_with_other_inputs_or_outputs_is_refused(field: str) -> None:
    proto = onnx.load_from_string(embedded(mugraphs.ntrans(dtype="float32")))
    node = next(n for n in proto.graph.node if n.op_type == "CpuKernel0")
    getattr(node, field).append(node.input[0] if field == "input" else "another")
    feed = feed_of(mugraphs.ntrans(dtype="float32")[1].inputs)
    with pytest.raises(Exception, match=rf"CpuKernel0\): it has \d {field}s, its plan says \d|type inference failed"):
        opened(proto.SerializeToString()).run(None, feed)


# ---------------------------------------------------------------- building


def test_the_library_reads_what_is_written_and_has_a_name_for_every_kernel() -> None:
    assert ctypes.CDLL(str(library())).taso_mirage_format() == PLAN_FORMAT
    proto = onnx.load_from_string(embedded(CASES["half"]()))
    for name, known in ((f"CpuKernel{NAMES - 1}", True), (f"CpuKernel{NAMES}", False)):
        proto.graph.node[0].op_type = name
        proto.ClearField("functions")
        if known:
            opened(proto.SerializeToString())
        else:
            with pytest.raises(Exception, match=f"{name}.* is not a registered function/op"):
                opened(proto.SerializeToString())


def shared_object(tmp_path: Path, source: str) -> str:
    (tmp_path / "source.cpp").write_text(source)
    made = tmp_path / "made.so"
    subprocess.run(
        [*compilers.compiler(), "-shared", "-fPIC", "-o", str(made), str(tmp_path / "source.cpp")], check=True
    )
    return str(made)


FEATURES = 'extern "C" const char taso_mirage_features[] = '
LIBRARIES = {
    "another version": (FEATURES + '"1 x86-64";', "has kernels of version 1, this library reads 3"),
    "another processor": (FEATURES + '"3 avx9";', "a processor with avx9, which this machine has not; build it here"),
    "something else": ("int x;", "is no library of taso_mirage's kernels"),
    "no library": (None, "cannot be loaded"),
}  # fmt: skip


@pytest.mark.parametrize("name", LIBRARIES)
def test_kernels_that_were_built_elsewhere_are_refused(name: str, tmp_path: Path) -> None:
    source, message = LIBRARIES[name]
    settings = onnxruntime.SessionOptions()
    file = str(tmp_path / "text.so") if source is None else shared_object(tmp_path, source)
    if source is None:
        Path(file).write_text("no library")
    settings.add_session_config_entry("taso_mirage.kernels", file)
    with pytest.raises(Exception, match=message):
        settings.register_custom_ops_library(str(library()))


def test_without_a_compiler_the_functions_are_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CXX", raising=False)
    monkeypatch.setattr(compilers, "find_spec", lambda name: None)
    compilers.compiler.cache_clear()
    with pytest.raises(
        RuntimeUnavailable, match=r"no C\+\+ compiler.*load it without `register`, and its functions compute the same"
    ):
        build_kernels(embedded(CASES["half"]()))
    compilers.compiler.cache_clear()


def test_a_cache_folder_that_cannot_be_made_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("TASO_MIRAGE_CACHE", str(tmp_path / "file"))
    with pytest.raises(RuntimeUnavailable, match=r"file/runtime cannot be made .*; set TASO_MIRAGE_CACHE"):
        library()


def test_a_kernel_is_compiled_once(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    content = embedded(CASES["half"]())
    first = build_kernels(content, tmp_path)
    monkeypatch.setattr(compilation, "compile_files", lambda command: pytest.fail(f"{command} ran again"))
    assert build_kernels(content, tmp_path) == first


def test_a_kernel_that_does_not_compile_is_an_error(tmp_path: Path) -> None:
    proto = onnx.load_from_string(embedded(CASES["half"]()))
    (entry,) = [e for e in proto.metadata_props if e.key.startswith("taso_mirage.cpp.")]
    entry.value = "this is no C++"
    with pytest.raises(RuntimeUnavailable, match=r"failed: .*error.*\$CXX chooses another compiler"):
        build_kernels(proto.SerializeToString(), tmp_path)


def test_a_newer_model_is_refused() -> None:
    proto = onnx.load_from_string(embedded(CASES["half"]()))
    (entry,) = [e for e in proto.metadata_props if e.key == "taso_mirage.format"]
    entry.value = "7"
    with pytest.raises(InvalidModel, match="kernels have format 7, this version reads 1; update taso-mirage"):
        register(onnxruntime.SessionOptions(), proto.SerializeToString())


def test_metadata_is_that_of_the_file(tmp_path: Path) -> None:
    content = embedded(CASES["half"]())
    (tmp_path / "m.onnx").write_bytes(content)
    wanted = {e.key: e.value for e in onnx.load_from_string(content).metadata_props}
    assert metadata(content) == metadata(tmp_path / "m.onnx") == metadata(str(tmp_path / "m.onnx")) == wanted
    for damaged in (content[:-3], b"\xff" * 40, b"\x72\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff"):
        with pytest.raises(InvalidModel, match="no ONNX model, or is truncated"):
            metadata(damaged)
    with pytest.raises(InvalidModel, match="no such file"):
        metadata(tmp_path / "missing.onnx")


# ---------------------------------------------------------------- regions that cannot be


def test_regions_without_a_function_are_refused() -> None:
    x, b = leaf("X", "float32", 6, 5), leaf("b", "float32", 6, 5)
    inner = weight("W", b.tensor)
    total = term("add", x, inner)
    made = cpu_kernel(
        Graph((x, b), (kernel([(x, (0,), -1), (b, (0,), -1)], lambda x, b: term("add", x, b), (2,), 1, (0,)),))
    )
    model = standalone(Graph((x,), (total,)), {"": 17}, {"W": StoredWeight(np.ones((6, 5), np.float32))})
    embed(model, [EmbeddedRegion((x, inner), (total,), made)])
    with pytest.raises(IllTyped, match="a region of 1 inputs, its kernel has 2"):
        embed(model, [EmbeddedRegion((x,), (total,), made)])
    one = replace(made, inputs=made.inputs[:1])
    with pytest.raises(Unsupported, match="the weight 'W' inside a region; it must be one of the kernel's inputs"):
        embed(model, [EmbeddedRegion((x,), (total,), one)])
    with pytest.raises(
        IllTyped, match=r"output 0 of a region, add, is float32\[6, ?5\], its kernel's float32\[5, ?6\]"
    ):
        embed(model, [EmbeddedRegion((x, inner), (total,), replace(made, outputs=(Tensor("float32", (5, 6)),)))])
    with pytest.raises(Unsupported, match="two regions that give the same term"):
        embed(model, [EmbeddedRegion((x, inner), (total,), made)] * 2)


def test_a_region_must_be_in_the_model() -> None:
    graph, goal = mugraphs.ntrans(dtype="float32")
    other = standalone(Graph(goal.inputs, (term("relu", goal.inputs[0]),)), {"": 17})
    with pytest.raises(Unsupported, match="the model has no term that is output div of a region"):
        embed(other, [EmbeddedRegion.of(goal, goal.inputs, cpu_kernel(graph))])


def test_an_old_model_gets_the_version_that_has_functions() -> None:
    model, region = model_of(CASES["half"]())
    model.header.ir_version = 4
    content = serialize(embed(model, [region]))
    assert onnx.load_from_string(content).ir_version == 8
    assert carries_kernels(content)
    assert not carries_kernels(serialize(model))
    assert model.header.ir_version == 4


def test_names_end() -> None:
    x = leaf("X", "float32", 2)
    terms = [term("mul", x, constant(float(i), "float32")) for i in range(NAMES + 1)]
    model = standalone(Graph((x,), tuple(terms)), {"": 17})
    lines = ["taso_mirage 1 cpu", "input float32 2", "output float32 2"]
    regions = [
        EmbeddedRegion(
            (x,), (t,), PlannedNode("cpu", f"k{i}", (x.tensor,), (t.tensor,), sealed([*lines, f"entry k{i}"]), "")
        )
        for i, t in enumerate(terms)
    ]
    assert len(onnx.load_from_string(serialize(embed(model, regions[:-1]))).functions) == NAMES
    with pytest.raises(Unsupported, match=f"more than {NAMES} different kernels for cpu in one model"):
        embed(model, regions)


def test_reading_an_embedded_model_keeps_its_functions() -> None:
    content = embedded(CASES["gelu chain"]())
    again = from_ir(from_proto(onnx.load_from_string(content)), trust_kernels=True)
    assert [n.op for n in again.graph].count("opaque") == 1
    before, after = (onnx.load_from_string(c).functions[0] for c in (content, serialize(again)))
    assert [n.op_type for n in before.node] == [n.op_type for n in after.node]
    assert (before.name, list(before.attribute)) == (after.name, list(after.attribute)) == ("CpuKernel0", ["plan"])


# ---------------------------------------------------------------- in place


def test_rows_are_appended_to_a_cache_in_place() -> None:
    """ONNX Runtime gives a node other memory for a result of another size; a caller binds the
    result to the memory of the cache. Then only the new rows are written."""
    goal = goals()["carried rows"]
    content = serialize(
        embed(standalone(goal, {"": 20}), [EmbeddedRegion.of(goal, goal.inputs, cpu_kernel(apart(goal)))])
    )
    session, feed = opened(content), feed_of(goal.inputs)
    (wanted,) = session.run(None, feed)
    for _ in range(2):
        memory = np.zeros(goal.outputs[0].shape, np.float32)
        memory[:4] = feed["rows"]
        binding = session.io_binding()
        for name, x in feed.items():
            there = memory if name == "rows" else x
            binding.bind_input(name, "cpu", 0, np.float32, x.shape, there.ctypes.data)
        binding.bind_output(session.get_outputs()[0].name, "cpu", 0, np.float32, memory.shape, memory.ctypes.data)
        session.run_with_iobinding(binding)
        assert np.array_equal(memory, wanted)
