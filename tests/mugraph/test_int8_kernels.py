"""Products of integers, and of floats with weights in 8 bits, as searched kernels for a GPU: every
bit in Triton's interpreter, tensor cores of integers in the compiled code, and wrong ones refused.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import in_turn
import numpy as np
import pytest
from numpy.typing import NDArray
from onnx_texts import built
from scripts import script
from small_goals import searched

from taso_mirage.devices.cpu.device import CPU_DEVICE
from taso_mirage.devices.cuda.device import gpu
from taso_mirage.emit.compile import compiled
from taso_mirage.emit.gpu.program import TritonProgram
from taso_mirage.errors import Unsupported
from taso_mirage.ir.model import Model
from taso_mirage.ir.terms import Graph, Node, Tensor, constant, numpy_dtype, variable
from taso_mirage.lowering.cuda import everywhere
from taso_mirage.meanings.reals import EXACT, REALS
from taso_mirage.measure.session import Session, working_providers
from taso_mirage.measure.target import CUDA
from taso_mirage.mugraph import tile_work
from taso_mirage.mugraph.integer_operands import SUMMED, of_integers_or_floats
from taso_mirage.mugraph.labels import label
from taso_mirage.mugraph.roles import inlined
from taso_mirage.mugraph.search import Search, SearchOptions, superoptimize
from taso_mirage.mugraph.verification import verified_mugraph
from taso_mirage.onnx_io import from_ir, from_proto, serialize
from taso_mirage.operators.interpret import interpret
from taso_mirage.operators.ops import term
from taso_mirage.regions.fragments import fragments
from taso_mirage.rewriting.text import parse_graph, show_graph
from taso_mirage.runtime.embed import EmbeddedRegion, embed
from taso_mirage.runtime.plan import cuda_kernel
from taso_mirage.targets.protocol import Trusted
from taso_mirage.verdicts import Evidence, Failure, FailureKind


@dataclass(frozen=True)
class Product:
    """x w of integers, less their zeros; `zeros` are the shapes of those that there are, or
    numbers."""

    left: str = "uint8"
    right: str = "int8"
    zeros: tuple[tuple[int, ...] | int | None, ...] = (None, None)
    sizes: tuple[int, ...] = (16, 128, 48)
    turned: bool = False
    extreme: bool = False

    def leaves(self) -> tuple[list[Node], Node]:
        """The inputs, and the sums."""
        *rows, k, n = self.sizes
        x = variable("x", Tensor(self.left, (*rows, k)))
        w = variable("w", Tensor(self.right, (n, k) if self.turned else (k, n)))
        zeros, given = [], []
        for name, dtype, zero in zip(("a", "b"), (self.left, self.right), self.zeros, strict=True):
            leaf = variable(name, Tensor(dtype, zero)) if isinstance(zero, tuple) else None
            zeros.append(constant(zero, dtype) if isinstance(zero, int) else leaf)
            given += [] if leaf is None else [leaf]
        right = term("transpose", w, perm=(1, 0)) if self.turned else w
        return [x, w, *given], term("matmul_integer", x, right, *zeros)

    def goal(self) -> Graph:
        leaves, total = self.leaves()
        return Graph(tuple(leaves), (total,))

    def layer(self, dtype: str = "float32") -> Graph:
        """relu(x w * scale * scales + bias)"""
        leaves, total = self.leaves()
        one, bias = variable("s", Tensor(dtype, ())), variable("t", Tensor(dtype, self.sizes[-1:]))
        columns = variable("u", Tensor(dtype, self.sizes[-1:]))
        scaled = term("mul", term("cast", total, to=dtype), term("mul", one, columns))
        return Graph((*leaves, one, columns, bias), (term("relu", term("add", scaled, bias)),))

    def drawn(self, node: Node, rng: np.random.Generator) -> NDArray[Any]:
        """Any bytes, or their ends alone; scales are powers of two, so products with them are
        exact."""
        if node.dtype in ("int8", "uint8"):
            ends = np.iinfo(node.dtype)
            if self.extreme:
                return rng.choice([ends.min, ends.max], node.shape).astype(node.dtype)
            return rng.integers(ends.min, ends.max + 1, node.shape).astype(node.dtype)
        values = 2.0 ** rng.integers(-12, -8, node.shape) if node.attr("name") in "su" else rng.normal(size=node.shape)
        return np.asarray(values).astype(numpy_dtype(node.dtype))

    def wanted(self, values: list[NDArray[Any]]) -> NDArray[Any]:
        """The sums by numpy, in 64 bits."""
        x, w, *zeros = (each.astype(np.int64) for each in values)
        w = w.T if self.turned else w
        given = iter(zeros)
        a, b = (next(given) if isinstance(z, tuple) else z or 0 for z in self.zeros)
        a = a[:, None] if np.ndim(a) == 1 else a
        return np.asarray((x - a) @ (w - b))


def kinds(graph: Graph) -> list[TritonProgram]:
    """A program with and without a loop, of one kernel and of several, with the fewest blocks."""
    found: dict[tuple[bool, int], TritonProgram] = {}
    programs = [each.program() for each in searched(graph, 40)]
    for program in sorted(programs, key=lambda p: sum(launch.blocks for launch in p.launches), reverse=True):
        found[any(launch.loop != 1 for launch in program.launches), len(program.launches)] = program
    return list(found.values())


SUMMED_OF = {
    "signed": Product("int8"),
    "zero": Product(zeros=((), None)),
    "number": Product(zeros=(131, 0)),
    "no_zero": Product(),
    "unsigned": Product("uint8", "uint8"),
    "columns": Product("int8", zeros=(None, (48,))),
    "both": Product(zeros=((), (48,))),
    "rows_and_columns": Product("uint8", "uint8", ((16,), (48,))),
    "ends": Product("uint8", "uint8", ((), (48,)), extreme=True),
    "one_row": Product(zeros=((), None), sizes=(1, 128, 48)),
    "odd": Product(zeros=((), None), sizes=(5, 96, 20)),
    "long": Product(zeros=((), None), sizes=(16, 1024, 32)),
    "long_unsigned": Product("uint8", "uint8", sizes=(16, 512, 32)),
    "batched": Product(zeros=((), None), sizes=(2, 8, 64, 32)),
    "turned": Product(zeros=((), None), turned=True),
}
LAYERS = {"zero": "float32", "both": "float32", "odd": "float32", "long": "float32", "signed": "float16"}


@pytest.fixture(scope="module")
def interpreted(tmp_path_factory: pytest.TempPathFactory) -> Path:
    pytest.importorskip("triton", reason="the extra `triton` is not installed")
    folder, programs = tmp_path_factory.mktemp("triton"), {}
    goals = {name: (each, each.goal()) for name, each in SUMMED_OF.items()}
    goals |= {f"{name}_layer": (SUMMED_OF[name], SUMMED_OF[name].layer(dtype)) for name, dtype in LAYERS.items()}
    for name, (product, graph) in goals.items():
        rng = np.random.default_rng(0)
        values = [product.drawn(x, rng) for x in graph.inputs]
        varied = name in ("odd", "long_layer")
        for i, program in enumerate(kinds(graph) if varied else [searched(graph)[0].program()]):
            programs[f"{name}_{i}"] = program.source, graph, values
    in_turn.interpreted(folder, programs)
    return folder


def results(folder: Path, name: str) -> list[NDArray[Any]]:
    files = [f for f in folder.glob(f"{name}_*.npy") if re.fullmatch(rf"{name}_\d+", f.stem)]
    assert files
    return [np.load(f) for f in files]


@pytest.mark.sampled(3, together=True)
@pytest.mark.parametrize("name", SUMMED_OF)
def test_sums_are_those_of_integers(name: str, interpreted: Path) -> None:
    product, rng = SUMMED_OF[name], np.random.default_rng(0)
    wanted = product.wanted([product.drawn(x, rng) for x in product.goal().inputs])
    for found in results(interpreted, name):
        np.testing.assert_array_equal(found, wanted)


@pytest.mark.sampled(3, together=True)
@pytest.mark.parametrize("name", LAYERS)
def test_a_layer_is_right_bit_by_bit(name: str, interpreted: Path) -> None:
    """Scales are powers of two, so no order of the products rounds."""
    product, rng = SUMMED_OF[name], np.random.default_rng(0)
    *given, s, u, t = [product.drawn(x, rng) for x in product.layer(LAYERS[name]).inputs]
    s, u, t = (each.astype(np.float32) for each in (s, u, t))
    total = product.wanted(given).astype(np.float32)
    wanted = np.maximum(total * (s * u) + t, 0).astype(LAYERS[name])
    for found in results(interpreted, f"{name}_layer"):
        np.testing.assert_array_equal(found, wanted)


def test_loops_and_several_kernels_are_tried() -> None:
    programs = kinds(SUMMED_OF["long"].goal())
    assert any(launch.loop != 1 for each in programs for launch in each.launches)
    assert {len(each.launches) for each in programs} >= {1, 2}
    split = next(each for each in programs if len(each.launches) == 2)
    assert {b.dtype for b in split.buffers if b.role == "scratch"} == {"int32"}


@pytest.mark.parametrize("dtype", ["float16", "float32"])
def test_the_time_of_a_product_of_bytes_hangs_on_no_result(dtype: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Operators on the sums may be of single precision, whose own products take longer."""
    paces: list[Any] = []

    def noted(model: tile_work.TileWork, args: Sequence[int], label: str) -> Any:
        paces.append(pace(model, args, label))
        return paces[-1]

    pace = tile_work.TileWork.pace
    monkeypatch.setattr(tile_work.TileWork, "pace", noted)
    superoptimize(SUMMED_OF["zero"].layer(dtype), best=1, budget=20.0)
    assert {*paces} == {tile_work.TURNING}


# ---------------------------------------------------------------- compiled

INSTRUCTION = re.compile(r"(wgmma\.mma_async|mma)\.sync\.\S*s32\.s8\.s8")


COMPILED = ("zero", "long_unsigned", "batched", "turned")
"""Cases that are compiled for tensor cores by default: zeros of each kind, signs, shapes and
layouts."""


@pytest.mark.sampled(3)
@pytest.mark.parametrize(
    ("name", "capability"),
    [
        ("zero", 80),
        *(
            pytest.param(name, 90, marks=[pytest.mark.slow] * (name not in COMPILED))
            for name in SUMMED_OF
            if name != "one_row"
        ),
    ],
)
def test_tensor_cores_multiply_the_bytes(name: str, capability: int) -> None:
    pytest.importorskip("triton", reason="the extra `triton` is not installed")
    programs = (each.program() for each in searched(SUMMED_OF[name].layer(), 8))
    made = compiled(next(p for p in programs if "int8 operands, int32 sums" in p.source), capability)
    assert all(each.cubin for each in made)
    assert any(INSTRUCTION.search(each.ptx) for each in made)


@pytest.mark.sampled(3)
@pytest.mark.parametrize("turned", [False, True])
def test_many_rows_are_a_product_of_warp_groups(turned: bool) -> None:
    pytest.importorskip("triton", reason="the extra `triton` is not installed")
    graph = Product(zeros=((), 0), sizes=(256, 4096, 4096), turned=turned).layer()
    program = searched(graph)[0].program()
    assert "int8 operands, int32 sums" in program.source
    (kernel,) = compiled(program, 90)
    assert {found.group(1) for found in INSTRUCTION.finditer(kernel.ptx)} == {"wgmma.mma_async"}
    assert kernel.shared < 227 * 1024


# ---------------------------------------------------------------- wrong programs


@pytest.mark.sampled(2)
@pytest.mark.parametrize("name", SUMMED_OF)
def test_bytes_apart_from_zeros_are_the_same_product(name: str) -> None:
    """The search reads the goal with all bytes and with their ends alone."""
    product = SUMMED_OF[name]
    graph = product.goal()
    other = of_integers_or_floats(inlined(graph.outputs))
    assert "whole" in {n.op for n in Graph(graph.inputs, other)}
    for seed in range(4):
        rng, kind = np.random.default_rng(seed), Product(**{**product.__dict__, "extreme": seed % 2 == 0})
        values = [kind.drawn(x, rng) for x in graph.inputs]
        (found,) = interpret(other, REALS, dict(zip(graph.inputs, values, strict=True))).values()
        np.testing.assert_array_equal(found, product.wanted(values))


WRONG = {
    "a zero is left out": ("zero", lambda p: Product(sizes=p.sizes)),
    "a zero is one less": ("number", lambda p: Product(zeros=(130, 0))),
    "a zero of the other": ("number", lambda p: Product(zeros=(131, 1))),
    "bytes with another sign": ("no_zero", lambda p: Product(zeros=(128, None))),
    "zeros of columns are left out": ("columns", lambda p: Product("int8")),
}


@pytest.mark.parametrize("why", WRONG)
def test_other_products_are_refuted(why: str) -> None:
    name, change = WRONG[why]
    product = SUMMED_OF[name]
    graph, other = product.goal(), change(product).goal()
    wrong = Graph(graph.inputs, other.outputs)
    found = searched(graph)[0].graph
    assert isinstance(verified_mugraph(found, graph), Evidence)
    refuted = verified_mugraph(found, wrong)
    assert isinstance(refuted, Failure)
    assert refuted.kind is FailureKind.REFUTED


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("v8 = sub(v2, v7)", "v8 = add(v2, v7)"),
        ("v8 = sub(v2, v7)", "v8 = sub(v2, v2)"),
        ("v4 = reduce_sum(v3, axes=(1,), keepdims=0)", "v4 = reduce_max(v3, axes=(1,), keepdims=0)"),
        ("v5 = whole(x2)", "v5 = cast(x2, to='int32')"),
        ("v1 = whole(x1)", "v1 = cast(x1, to='int32')"),
    ],
)
def test_wrong_mugraphs_are_refuted(old: str, new: str) -> None:
    """A sign, a sum that is missing, a largest one in its place, bytes without the change of
    sign."""
    graph = SUMMED_OF["zero"].goal()
    text = show_graph(searched(graph)[0].graph)
    assert text.count(old) == 1
    refuted = verified_mugraph(parse_graph(text.replace(old, new)), graph)
    assert isinstance(refuted, Failure)
    assert refuted.kind is FailureKind.REFUTED


def test_integers_are_compared_without_a_tolerance() -> None:
    """One more in all elements, as an even number that the field does not see: it has no remainder
    there."""
    graph = SUMMED_OF["signed"].goal()
    (total,) = graph.outputs
    near = Graph(graph.inputs, (term("add", total, constant(np.asarray(65063 * 32531, np.int64).astype(np.int32))),))
    refused = verified_mugraph(near, graph)
    assert isinstance(refused, Failure)


def test_a_mugraph_is_printed_and_read_again() -> None:
    found = searched(SUMMED_OF["both"].layer())[0].graph
    assert parse_graph(show_graph(found)) == found


def test_a_sum_that_may_leave_int32_has_no_labels() -> None:
    assert label(Product("int8", sizes=(2, SUMMED - 1, 2)).goal())
    with pytest.raises(Unsupported, match=f"a sum of {SUMMED} products of integers"):
        label(Product("int8", sizes=(2, SUMMED, 2)).goal())


@pytest.mark.parametrize("op", ["div", "max", "mod"])
def test_only_sums_and_products_of_integers_have_labels(op: str) -> None:
    leaves, total = Product("int8").leaves()
    with pytest.raises(Unsupported):
        label(Graph(tuple(leaves), (term("cast", term(op, total, total), to="float32"),)))


@pytest.mark.parametrize(
    ("left", "right", "zeros"),
    [
        (Tensor("uint8", (3, 4)), Tensor("uint8", (4,)), (Tensor("uint8", (3,)), Tensor("uint8", ()))),
        (Tensor("int8", (4,)), Tensor("int8", (4,)), (Tensor("int8", ()), Tensor("int8", ()))),
        (Tensor("uint8", (4,)), Tensor("uint8", (4, 5)), (Tensor("uint8", ()), Tensor("uint8", (5,)))),
    ],
)
def test_a_product_with_one_axis_keeps_its_type(left: Tensor, right: Tensor, zeros: tuple[Tensor, Tensor]) -> None:
    made = term("matmul_integer", *(variable(n, t) for n, t in zip("xwab", (left, right, *zeros), strict=True)))
    (found,) = of_integers_or_floats(inlined((made,)))
    assert found.type == made.type


def test_other_integers_are_no_goal() -> None:
    """Integers that are not known to come from bytes may wrap."""
    x = variable("x", Tensor("int32", (8, 8)))
    with pytest.raises(Unsupported):
        label(Graph((x,), (term("cast", term("add", x, x), to="float32"),)))


def test_a_cpu_has_no_kernel_for_sums_of_integers() -> None:
    with pytest.raises(Unsupported, match="sums of integers on CPU"):
        Search(SUMMED_OF["zero"].goal(), SearchOptions(), CPU_DEVICE)


def test_rounding_to_integers_has_no_labels() -> None:
    leaves, total = Product("int8").leaves()
    s, zero = variable("s", Tensor("float32", ())), constant(0, "int8")
    requantized = term("quantize", term("cast", total, to="float32"), s, zero, dtype="int8")
    with pytest.raises(Unsupported):
        label(Graph((*leaves, s), (requantized,)))


# ---------------------------------------------------------------- weights of 8 bits


def with_weights(dtype: str, scales: str = "row", zeros: bool = True, rows: int = 16, floats: str = "float16") -> Graph:
    """x w, where w is (n, k) in 8 bits with a scale, and a zero, for each row or for all."""
    n, k = 48, 128
    x, w = variable("x", Tensor(floats, (rows, k))), variable("w", Tensor(dtype, (n, k)))
    shape = (n,) if scales == "row" else ()
    s, z = variable("s", Tensor(floats, shape)), variable("z", Tensor(dtype, shape))
    weights = term("dequantize", w, s, *([z] if zeros else []), dtype=floats, axis=0)
    product = term("matmul", x, term("transpose", weights, perm=(1, 0)))
    return Graph((x, w, s, *([z] if zeros else [])), (product,))


WEIGHTS = {
    "rows": with_weights("int8"),
    "rows_unsigned": with_weights("uint8"),
    "tensor": with_weights("int8", "tensor"),
    "tensor_unsigned": with_weights("uint8", "tensor"),
    "symmetric": with_weights("int8", zeros=False),
    "one_row": with_weights("int8", rows=1),
    "one_row_unsigned": with_weights("uint8", rows=1),
    "single": with_weights("int8", floats="float32"),
}


def values_of(graph: Graph) -> list[NDArray[Any]]:
    rng = np.random.default_rng(0)
    scale = {"s": 0.01}
    return [
        rng.integers(np.iinfo(x.dtype).min, np.iinfo(x.dtype).max + 1, x.shape).astype(x.dtype)
        if x.dtype in ("int8", "uint8")
        else np.asarray(rng.normal(size=x.shape) * scale.get(x.attr("name"), 1)).astype(numpy_dtype(x.dtype))
        for x in graph.inputs
    ]


@pytest.fixture(scope="module")
def dequantized(tmp_path_factory: pytest.TempPathFactory) -> Path:
    pytest.importorskip("triton", reason="the extra `triton` is not installed")
    folder = tmp_path_factory.mktemp("triton")
    found = {name: (searched(graph)[0].program().source, graph, values_of(graph)) for name, graph in WEIGHTS.items()}
    in_turn.interpreted(folder, found)
    return folder


@pytest.mark.sampled(3, together=True)
@pytest.mark.parametrize("name", WEIGHTS)
def test_products_with_weights_of_8_bits(name: str, dequantized: Path) -> None:
    graph = WEIGHTS[name]
    given = dict(zip(graph.inputs, map(EXACT.load, values_of(graph)), strict=True))
    (wanted,) = interpret(graph.outputs, EXACT, given).values()
    allowed = 1e-6 if graph.outputs[0].dtype == "float32" else 1e-3
    found = np.load(dequantized / f"{name}.npy")
    assert np.linalg.norm(found - wanted) < allowed * np.linalg.norm(wanted)


@pytest.mark.parametrize("name", [name for name in WEIGHTS if "tensor" not in name])
def test_scales_of_rows_stand_behind_the_sum_and_bytes_are_read(name: str) -> None:
    (kernel,) = [n for n in searched(WEIGHTS[name])[0].graph if n.op == "kernel"]
    body = kernel.attr("body")
    assert [x.dtype for x in body.inputs if "w" in x.attr("name")] == [WEIGHTS[name].inputs[1].dtype]
    summed = next(n for n in body if n.op in ("einsum", "reduce_sum"))
    below = Graph((), (summed,))
    assert "s" not in {n.attr("name") for n in below if n.op == "input"}


def test_wrong_zeros_of_weights_are_refuted() -> None:
    found, right = searched(WEIGHTS["rows"])[0].graph, WEIGHTS["rows"]
    without = Graph(right.inputs, with_weights("int8", zeros=False).outputs)
    refuted = verified_mugraph(found, without)
    assert isinstance(refuted, Failure)
    assert refuted.kind is FailureKind.REFUTED


# ---------------------------------------------------------------- in a model

DYNAMIC = """(float[16,512] x) => (float[16,256] y)
{ q, s, z = DynamicQuantizeLinear(x) p = MatMulInteger(q, w, z, o) f = Cast <to = 1>(p) t = Mul(s, u)
  m = Mul(f, t) a = Add(m, b) y = Relu(a) }"""
JOINED = """(uint8[16,512] q, float s, uint8 z) => (float[16,256] y)
{ p = com.microsoft.MatMulIntegerToFloat(q, w, s, u, z, , b) y = Relu(p) }"""
GATED = """(float[16,512] x) => (float[16,256] y)
{ q, s, z = DynamicQuantizeLinear(x) p = MatMulInteger(q, w, z, o) f = Cast <to = 1>(p) t = Mul(s, u)
  m = Mul(f, t) g = Sigmoid(m) r = MatMulInteger(q, v, z, o) h = Cast <to = 1>(r) k = Mul(h, t)
  y = Mul(g, k) }"""
DEQUANTIZED = """(float16[16,512] x) => (float16[16,256] y)
{ d = DequantizeLinear <axis = 1>(w, i, e) m = MatMul(x, d) y = Add(m, c) }"""


def arrays() -> dict[str, NDArray[Any]]:
    rng = np.random.default_rng(0)
    return {
        "w": rng.integers(-128, 128, (512, 256)).astype(np.int8),
        "v": rng.integers(-128, 128, (512, 256)).astype(np.int8),
        "o": np.zeros((), np.int8),
        "e": rng.integers(-9, 9, 256).astype(np.int8),
        "u": rng.uniform(0.001, 0.01, 256).astype(np.float32),
        "i": rng.uniform(0.001, 0.01, 256).astype(np.float16),
        "b": rng.normal(size=256).astype(np.float32),
        "c": rng.normal(size=256).astype(np.float16),
    }


def model(text: str) -> Model:
    made = set(re.findall(r"(\w+) =", text))
    read = {name: v for name, v in arrays().items() if name not in made and re.search(rf"\b{name}\b", text)}
    return from_ir(from_proto(built(text, read)))


def feed(text: str) -> dict[str, NDArray[Any]]:
    rng = np.random.default_rng(1)
    if "uint8[16,512] q" in text:
        zero = np.asarray(120, np.uint8)
        return {
            "q": rng.integers(0, 256, (16, 512)).astype(np.uint8),
            "s": np.asarray(0.02, np.float32),
            "z": zero,
        }
    return {"x": rng.normal(size=(16, 512)).astype(np.float16 if "float16[" in text else np.float32)}


REGIONS = {
    DYNAMIC: ("p", "f", "t", "m", "a", "y"),
    GATED: ("p", "f", "t", "m", "g", "r", "h", "k", "y"),
    JOINED: ("p", "y"),
    DEQUANTIZED: ("d", "m", "y"),
}


def wide(text: str) -> NDArray[Any]:
    """The outputs of the model; in float64 where its floats are half precision, since ONNX
    Runtime's sums on a CPU are not exact enough then."""
    if "float16[" not in text:
        (found,) = Session(serialize(model(text))).run(feed(text))
        return found
    x, w, i, e, c = (np.asarray(v, float) for v in (feed(text)["x"], *map(arrays().get, "wiec")))
    return x @ ((w - e) * i) + c


@pytest.mark.sampled(3)
@pytest.mark.parametrize("text", REGIONS)
def test_a_layer_is_one_region_on_a_gpu_but_for_its_quantizer(text: str) -> None:
    ((_, sites),) = fragments(model(text), {}, lanes=4).items()
    names = REGIONS[text]
    assert sorted(sites[0].names) == sorted(names)
    elsewhere = [n for sites in fragments(model(text), {}).values() for site in sites for n in site.names]
    assert not {"p", "r", "d"} & set(elsewhere)


def with_kernel(text: str, capability: int) -> Model:
    ((graph, sites),) = fragments(model(text), {}, lanes=4).items()
    program = searched(graph)[0].program()
    planned = cuda_kernel(program, everywhere(program, capability, ()), [])
    return embed(model(text), [EmbeddedRegion(site.inputs, site.outputs, planned) for site in sites])


@pytest.mark.sampled(3)
@pytest.mark.parametrize("text", REGIONS)
def test_a_model_with_a_kernel_keeps_its_operators(text: str) -> None:
    pytest.importorskip("triton", reason="the extra `triton` is not installed")
    (found,), (wanted,) = (Session(serialize(each)).run(feed(text)) for each in (with_kernel(text, 90), model(text)))
    np.testing.assert_array_equal(found, wanted)


def test_the_wide_result_is_the_models() -> None:
    (found,) = Session(serialize(model(DEQUANTIZED))).run(feed(DEQUANTIZED))
    assert np.linalg.norm(found - wide(DEQUANTIZED)) < 1e-2 * np.linalg.norm(wide(DEQUANTIZED))


@pytest.mark.skipif("CUDAExecutionProvider" not in working_providers(), reason="needs a GPU")
@pytest.mark.parametrize("text", REGIONS)
def test_a_kernel_runs_in_a_model_on_a_gpu(text: str) -> None:
    device = gpu()
    assert device is not None
    session = Session(Trusted(serialize(with_kernel(text, device.capability))), CUDA)
    (found,), wanted = session.run(feed(text)), wide(text)
    assert np.linalg.norm(found - wanted) < 4e-3 * np.linalg.norm(wanted)


# ---------------------------------------------------------------- the benchmark


@pytest.mark.sampled(3)
@pytest.mark.parametrize("as_read", [False, True])
@pytest.mark.parametrize("left", ["uint8", "int8", "float16"])
@pytest.mark.parametrize("columns", [24, 32])  # square weights tell nothing by their shape
def test_the_benchmark_computes_its_rows_in_all_ways(columns: int, left: str, as_read: bool) -> None:
    torch = pytest.importorskip("torch")
    peer = script("integer_products")
    product = peer.IntegerProduct(4, columns=columns, inner=32, left=left, as_read=as_read)
    graph, rng = product.goal(), np.random.default_rng(0)
    assert product.bytes() > 4 * 32 + 32 * columns
    assert graph.inputs[1].shape == ((32, columns) if as_read or left == "float16" else (columns, 32))
    values = [Product().drawn(x, rng) for x in graph.inputs]
    if len(values) > len(product.leaves()):
        values[-1] = values[1].sum(1, dtype=np.int32)[None]
    given = dict(zip(graph.inputs, map(EXACT.load, values), strict=True))
    (wanted,) = interpret(graph.outputs, EXACT, given).values()
    exact = product.exact([torch.tensor(v) for v in values]).numpy()
    np.testing.assert_allclose(exact, wanted, rtol=1e-12)
    feed = {f"x{i}": values[0] for i in range(2)}
    found = Session(peer.model(product, [product.stored(values)], 2).SerializeToString()).run(feed)
    assert len(found) == 2
    for each in found:
        np.testing.assert_allclose(each.astype(float), wanted, rtol=2e-3 if left == "float16" else 1e-6)
