"""Products of 8-bit floats with scales as searched kernels: scales behind the sum, the program in
Triton's interpreter with and without such floats, compiled without a GPU, and told apart from wrong
ones."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import in_turn
import numpy as np
import pytest
from numpy.typing import NDArray
from onnx_texts import built
from scripts import script
from small_goals import searched

from models.workloads import BEYOND
from taso_mirage.devices.cuda.device import gpu
from taso_mirage.emit.compile import compiled
from taso_mirage.errors import Unsupported
from taso_mirage.ir.model import Model
from taso_mirage.ir.terms import Graph, Node, Tensor, constant, numpy_dtype, variable
from taso_mirage.lowering.cuda import everywhere
from taso_mirage.meanings.reals import EXACT
from taso_mirage.measure.session import Session, working_providers
from taso_mirage.measure.target import CUDA
from taso_mirage.mugraph.goal import refuse
from taso_mirage.mugraph.labels import label
from taso_mirage.mugraph.verification import verified_mugraph
from taso_mirage.onnx_io import from_ir, from_proto, serialize
from taso_mirage.operators.interpret import interpret
from taso_mirage.operators.ops import term
from taso_mirage.regions.fragments import fragments
from taso_mirage.rewriting.text import parse_graph, show_graph
from taso_mirage.runtime.embed import EmbeddedRegion, embed
from taso_mirage.runtime.plan import cuda_kernel
from taso_mirage.targets.protocol import Trusted
from taso_mirage.verdicts import Failure, FailureKind

E4M3, E5M2 = "float8_e4m3fn", "float8_e5m2"
BLOCK = 128


def scaled(x: Node, scale: str, axis: int, dtype: str) -> tuple[Node, list[Node]]:
    """Floats of 8 bits as those that they stand for, with scales of the whole, of one axis, or of
    blocks along the other one; floats as they are."""
    if x.dtype == dtype:
        return x, []
    shape = {"": (), "row": (x.shape[axis],)}.get(scale)
    if shape is not None:
        s = variable(f"{x.attr('name')}s", Tensor(dtype, shape))
        return term("dequantize", x, s, dtype=dtype, axis=axis), [s]
    along, n = 1 - axis, BLOCK
    s = variable(f"{x.attr('name')}s", Tensor(dtype, tuple(d // n if i == along else d for i, d in enumerate(x.shape))))
    return term("dequantize", x, s, dtype=dtype, axis=along, block_size=n), [s]


def goal(
    left: str = E4M3,
    right: str = E4M3,
    scale: str = "row",
    turned: bool = True,
    dtype: str = "float16",
    sizes: tuple[int, int, int] = (16, 128, 48),
) -> Graph:
    """x w, where w is stored (n, k) if it is `turned`, as layers of PyTorch have it."""
    m, k, n = sizes
    x, w = variable("x", Tensor(left, (m, k))), variable("w", Tensor(right, (n, k) if turned else (k, n)))
    a, own = scaled(x, scale, 0, dtype)
    b, others = scaled(w, scale, 0 if turned else 1, dtype)
    b = term("transpose", b, perm=(1, 0)) if turned else b
    return Graph((x, w, *own, *others), (term("matmul", a, b),))


def attention(scales: tuple[int, ...] = (2,), dtype: str = "float16", number: float | None = None) -> Graph:
    """Two heads of 16 queries on 256 keys of width 32, all of 8 bits, with a scale for each head,
    one for all, or a `number`."""
    q, k, v = (variable(x, Tensor(E4M3, (2, n, 32))) for x, n in (("q", 16), ("k", 256), ("v", 256)))
    own = [variable(f"{x}s", Tensor(dtype, scales)) for x in "qkv"]
    given = own if number is None else [constant(number, dtype)] * 3
    own = own if number is None else []
    a, b, c = (term("dequantize", x, s, dtype=dtype, axis=0) for x, s in zip((q, k, v), given, strict=True))
    weights = term("softmax", term("matmul", a, term("transpose", b, perm=(0, 2, 1))), axis=-1)
    return Graph((q, k, v, *own), (term("matmul", weights, c),))


def gated(rows: int = 16, inner: int = 128, columns: int = 48) -> Graph:
    """silu(x g) * (x u), all of 8 bits."""
    x, one = variable("x", Tensor(E4M3, (rows, inner))), variable("xs", Tensor("float16", ()))
    a, leaves = term("dequantize", x, one, dtype="float16"), [x, one]
    products = []
    for name in "gu":
        w, s = variable(name, Tensor(E4M3, (columns, inner))), variable(f"{name}s", Tensor("float16", (columns,)))
        b = term("transpose", term("dequantize", w, s, dtype="float16", axis=0), perm=(1, 0))
        leaves, products = [*leaves, w, s], [*products, term("matmul", a, b)]
    gate, up = products
    return Graph(tuple(leaves), (term("mul", term("mul", gate, term("sigmoid", gate)), up),))


def drawn(node: Node, rng: np.random.Generator) -> NDArray[Any]:
    values = rng.normal(size=node.shape) * (8 if node.dtype in (E4M3, E5M2) else 0.05)
    return np.asarray(np.abs(values) if node.attr("name").endswith("s") else values).astype(numpy_dtype(node.dtype))


CASES = {
    "tensor": goal(scale=""),
    "rows": goal(),
    "rows_as_stored": goal(turned=False),
    "blocks": goal(scale="block", sizes=(8, 256, 96)),
    "other_format": goal(left=E5M2, right=E5M2),
    "both_formats": goal(left=E5M2),
    "weights_alone": goal(left="float16", turned=False),
    "weights_alone_bfloat16": goal(left="bfloat16", dtype="bfloat16"),
    "single": goal(dtype="float32"),
    "one_row": goal(sizes=(1, 128, 48)),
    "odd": goal(sizes=(5, 96, 20)),
    "attention": attention(),
    "attention_scaled_alike": attention(()),
    "attention_scaled_by_a_number": attention(number=0.37),
    "gated": gated(),
}
INTERPRETED = {name: graph for name, graph in CASES.items() if "bfloat16" not in name}
"""Triton's interpreter multiplies the bits of bf16 operands."""


@pytest.fixture(scope="module")
def interpreted(tmp_path_factory: pytest.TempPathFactory) -> Path:
    pytest.importorskip("triton", reason="the extra `triton` is not installed")
    folder, programs = tmp_path_factory.mktemp("triton"), {}
    for name, graph in INTERPRETED.items():
        source = searched(graph)[0].program().source
        for end in ("", in_turn.WITHOUT):
            rng = np.random.default_rng(0)
            programs[name + end] = source, graph, [drawn(x, rng) for x in graph.inputs]
    in_turn.interpreted(folder, programs)
    return folder


@pytest.mark.sampled(3, together=True)
@pytest.mark.parametrize("end", ["", in_turn.WITHOUT])
@pytest.mark.parametrize("name", INTERPRETED)
def test_generated_code_computes_the_product(name: str, end: str, interpreted: Path) -> None:
    graph, rng = CASES[name], np.random.default_rng(0)
    given = {x: EXACT.load(drawn(x, rng)) for x in graph.inputs}
    (wanted,) = interpret(graph.outputs, EXACT, given).values()
    found = np.load(interpreted / f"{name}{end}.npy")
    allowed = {"float32": 1e-6, "float16": 1e-3}[graph.outputs[0].dtype]
    assert np.linalg.norm(found - wanted) < allowed * np.linalg.norm(wanted)


OLDER = ("tensor", "other_format", "attention", "gated")
"""Cases that are compiled by default for a GPU without such floats, too."""
NEWER = (*OLDER, "rows_as_stored", "blocks", "weights_alone_bfloat16", "single", "one_row")
"""Cases that are compiled by default for a GPU with them: the interpreter runs the others by
default."""


@pytest.mark.sampled(3)
@pytest.mark.parametrize(
    ("name", "capability"),
    [
        *(pytest.param(name, 90, marks=[pytest.mark.slow] * (name not in NEWER)) for name in CASES),
        *(pytest.param(name, 80, marks=[pytest.mark.slow] * (name not in OLDER)) for name in CASES),
    ],
)
def test_programs_compile_with_floats_of_8_bits_and_without(name: str, capability: int) -> None:
    pytest.importorskip("triton", reason="the extra `triton` is not installed")
    kernels = compiled(searched(CASES[name])[0].program(), capability)
    assert all(each.cubin for each in kernels)
    text = "".join(each.ptx for each in kernels)
    assert capability >= 89 or not any(kind in text for kind in ("e4m3", "e5m2"))


LARGE = (128, 4096, 4096)


@pytest.mark.sampled(3)
@pytest.mark.parametrize(
    ("graph", "operands"),
    [
        (goal(sizes=LARGE), E4M3),
        (goal(left=E5M2, right=E5M2, scale="", sizes=LARGE), E5M2),
        (goal(sizes=LARGE, turned=False), "float16"),
        (goal(left=E5M2, sizes=LARGE), "float16"),
        pytest.param(goal(sizes=LARGE, dtype="float32"), "float16", marks=pytest.mark.slow),
        pytest.param(goal(left="float16", sizes=LARGE), "float16", marks=pytest.mark.slow),
    ],
)
def test_tensor_cores_take_8_bits_where_both_operands_lie_along_the_sum(graph: Graph, operands: str) -> None:
    """Where there are 64 rows or more in a tile, as they want it; elsewhere they take halves, and
    fewer rows are converted after they were loaded."""
    pytest.importorskip("triton", reason="the extra `triton` is not installed")
    program = searched(graph)[0].program()
    assert f"lanes, {operands} operands" in program.source
    text = "".join(each.ptx for each in compiled(program, 90))
    assert ("e4m3.e4m3" in text or "e5m2.e5m2" in text) == (operands in (E4M3, E5M2))


@pytest.mark.sampled(3)
@pytest.mark.parametrize("graph", [attention(), attention(()), attention(number=0.37), gated()])
def test_scales_of_several_products_are_multiplied_behind_their_sums(graph: Graph) -> None:
    bodies = [n.attr("body") for n in searched(graph)[0].graph if n.op == "kernel"]
    read = [n for body in bodies for n in body if n.op == "cast" and n.args[0].dtype == E4M3]
    users = [n.op for body in bodies for n in body if any(x in read for x in n.args)]
    assert len(read) == 3
    assert set(users) <= {"einsum", "transpose", "reshape"}


def test_a_number_may_be_a_scale_and_something_else() -> None:
    """Where the number is an operand of another operator, too, it is beside no sum of the values
    that it scales."""
    graph = attention(number=0.5)
    (output,) = graph.outputs
    shifted = Graph(graph.inputs, (term("add", output, constant(0.5, "float16")),))
    found = searched(shifted)
    assert not isinstance(verified_mugraph(found[0].graph, shifted), Failure)


@pytest.mark.sampled(3)
@pytest.mark.parametrize("scale", ["", "row"])
def test_scales_are_multiplied_behind_the_sum(scale: str) -> None:
    found = searched(goal(scale=scale, sizes=(16, 4096, 1024)))[0]
    (kernel,) = [n for n in found.graph if n.op == "kernel"]
    (dot,) = [n for n in kernel.attr("body") if n.op == "einsum"]
    assert all(a.op == "cast" and a.args[0].dtype == E4M3 for a in dot.args)


def test_scales_of_blocks_are_multiplied_behind_the_sum_of_a_block() -> None:
    found = searched(goal(scale="block", sizes=(16, 4096, 1024)))[0]
    bodies = [n.attr("body") for n in found.graph if n.op == "kernel"]
    (dot,) = [n for body in bodies for n in body if n.op == "einsum"]
    assert all(a.op in ("cast", "reshape") for a in dot.args)
    assert [x.dtype for x in bodies[0].inputs].count(E4M3) == 2
    assert any(n.op == "mul" for body in bodies for n in body)  # in its own kernel, or in the one that sums blocks


def test_a_mugraph_is_printed_and_read_again() -> None:
    found = searched(goal())[0].graph
    assert parse_graph(show_graph(found)) == found


# ---------------------------------------------------------------- wrong programs


def test_wrong_products_are_refuted() -> None:
    found, (x, w, s, t) = searched(goal(sizes=(32, 64, 32)))[0].graph, goal(sizes=(32, 64, 32)).inputs
    for a, b, why in ((t, s, "scales exchanged"), (s, s, "one of both twice")):
        left = term("dequantize", x, a, dtype="float16", axis=0)
        right = term("dequantize", w, b, dtype="float16", axis=0)
        wrong = Graph((x, w, s, t), (term("matmul", left, term("transpose", right, perm=(1, 0))),))
        refuted = verified_mugraph(found, wrong)
        assert isinstance(refuted, Failure), why
        assert refuted.kind is FailureKind.REFUTED


def test_blocks_that_share_a_scale_are_told_from_blocks_that_do_not() -> None:
    graph = goal(scale="block", sizes=(16, 512, 48))
    x, w, s, t = graph.inputs
    rolled = term(
        "concat",
        *(term("slice", s, starts=(i,), ends=(j,), axes=(1,), steps=(1,)) for i, j in ((1, 4), (0, 1))),
        axis=1,
    )
    left = term("dequantize", x, rolled, dtype="float16", axis=1, block_size=BLOCK)
    right = term("transpose", term("dequantize", w, t, dtype="float16", axis=1, block_size=BLOCK), perm=(1, 0))
    wrong = Graph(graph.inputs, (term("matmul", left, right),))
    refuted = verified_mugraph(searched(graph)[0].graph, wrong)
    assert isinstance(refuted, Failure)
    assert refuted.kind is FailureKind.REFUTED


@pytest.mark.parametrize("op", ["quantize", "add"])
def test_rounding_to_8_bits_has_no_labels(op: str) -> None:
    """To a kernel a conversion between floats is no operation: one to 8 bits is not let in."""
    x, y = (variable(n, Tensor("float16" if op == "quantize" else E4M3, (8, 8))) for n in "xy")
    one = variable("s", Tensor("float16", ()))
    made = term("quantize", x, one, dtype=E4M3) if op == "quantize" else term("add", x, y)
    with pytest.raises(Unsupported):
        label(Graph((x, one) if op == "quantize" else (x, y), (made,)))


def test_floats_of_4_bits_are_refused() -> None:
    x = variable("x", Tensor("float4_e2m1fn", (8, 8)))
    with pytest.raises(Unsupported, match="x is float4_e2m1fn"):
        refuse(Graph((x,), (term("dequantize", x, variable("s", Tensor("float16", ())), dtype="float16"),)))


# ---------------------------------------------------------------- in a model

LAYER = """(float16[16,512] x) => (float16[16,256] y)
{ q = QuantizeLinear(x, s, z) d = DequantizeLinear(q, s, z) v = DequantizeLinear <axis = 0>(w, t, o)
  u = Transpose(v) m = MatMul(d, u) y = Add(m, b) }"""


def layer() -> Model:
    """A linear layer as exporters quantize it: weights (n, k) with scales of their rows."""
    rng = np.random.default_rng(0)
    w = rng.normal(0, 60, (256, 512)).astype(numpy_dtype(E4M3))
    scales = {"t": np.exp(rng.normal(-5, 0.3, 256)).astype(np.float16), "s": np.asarray(0.011, np.float16)}
    zeros = {"o": np.zeros(256, w.dtype), "z": np.zeros((), w.dtype)}
    return from_ir(from_proto(built(LAYER, {"w": w, **scales, **zeros, "b": rng.normal(size=256).astype(np.float16)})))


def with_kernel(model: Model, capability: int) -> Model:
    ((graph, sites),) = fragments(model, {}, lanes=4).items()
    program = searched(graph)[0].program()
    planned = cuda_kernel(program, everywhere(program, capability, ()), [])
    return embed(model, [EmbeddedRegion(site.inputs, site.outputs, planned) for site in sites])


def feed() -> dict[str, NDArray[Any]]:
    return {"x": np.random.default_rng(1).normal(size=(16, 512)).astype(np.float16)}


def test_a_layer_is_one_region_on_a_gpu_but_for_its_quantizer() -> None:
    ((graph, sites),) = fragments(layer(), {}, lanes=4).items()
    assert sites[0].names == ("d", "v", "u", "m", "y")
    assert [x.dtype for x in graph.inputs].count(E4M3) == 2
    elsewhere = {name for sites in fragments(layer(), {}).values() for site in sites for name in site.names}
    assert elsewhere.isdisjoint({"d", "v"})


@pytest.mark.sampled(3)
def test_a_model_with_a_kernel_keeps_its_operators() -> None:
    pytest.importorskip("triton", reason="the extra `triton` is not installed")
    model = with_kernel(layer(), 90)
    assert b"float8_e4m3fn 256 512" in serialize(model)
    (found,), (wanted,) = (Session(serialize(each)).run(feed()) for each in (model, layer()))
    np.testing.assert_array_equal(found, wanted)


@pytest.mark.skipif("CUDAExecutionProvider" not in working_providers(), reason="needs a GPU")
def test_a_kernel_runs_in_a_model_on_a_gpu() -> None:
    device = gpu()
    assert device is not None
    session = Session(Trusted(serialize(with_kernel(layer(), device.capability))), CUDA)
    (found,), (wanted,) = session.run(feed()), Session(serialize(layer())).run(feed())
    assert session.captures
    assert np.linalg.norm(found.astype(float) - wanted) < 4e-3 * np.linalg.norm(wanted.astype(float))


# ---------------------------------------------------------------- the benchmark


@pytest.mark.sampled(3)
@pytest.mark.parametrize(
    ("name", "sizes"),
    [
        ("float8_linear", {"batch": 4, "width": 32, "hidden": 48}),
        ("float8_linear", {"batch": 4, "width": 32, "hidden": 48, "rows": 0}),
        ("float8_attention", {"heads": 2, "group": 4, "width": 16, "keys": 64}),
    ],
)
def test_the_benchmark_computes_its_rows_in_pytorch(name: str, sizes: dict[str, int]) -> None:
    torch = pytest.importorskip("torch")
    graph, rng = BEYOND[name](**sizes).graph(), np.random.default_rng(0)
    values = [drawn(x, rng) for x in graph.inputs]
    (wanted,) = interpret(graph.outputs, EXACT, dict(zip(graph.inputs, map(EXACT.load, values), strict=True))).values()
    peer = script("float8_peer")
    found = getattr(peer, name.removeprefix("float8_"))(*[torch.tensor(v.astype(np.float64)) for v in values])
    np.testing.assert_allclose(found.numpy(), wanted, rtol=1e-9)
    tensors = [torch.tensor(v.astype(np.float32)).to(getattr(torch, v.dtype.name)) for v in values]
    if name == "float8_linear":
        ((_, call, inputs),) = [kind for kind in peer.kinds(name, [tensors]) if kind[0] == "cuBLAS in half precision"]
        half = call(*inputs[0]).double().numpy()
        assert np.linalg.norm(half - wanted) < 2e-3 * np.linalg.norm(wanted)
