"""Products with weights of few bits in blocks as searched Triton kernels: right in the interpreter,
compiled without a GPU, and told apart from wrong ones."""

from __future__ import annotations

from contextlib import suppress
from functools import cache
from itertools import islice
from pathlib import Path
from types import MappingProxyType

import in_turn
import numpy as np
import onnx_ir
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper
from small_goals import searched

from taso_mirage.devices.cuda.device import gpu
from taso_mirage.emit.compile import compiled
from taso_mirage.emit.gpu.program import TritonProgram
from taso_mirage.emit.triton import program
from taso_mirage.emit.tune import overlapped
from taso_mirage.errors import Unsupported
from taso_mirage.ir.model import Model
from taso_mirage.ir.terms import ABSENT, Graph, Node, Tensor, constant, variable, weight
from taso_mirage.lowering.cuda import everywhere
from taso_mirage.meanings.reals import EXACT
from taso_mirage.measure.session import Session, working_providers
from taso_mirage.measure.target import CUDA
from taso_mirage.mugraph.closure import close
from taso_mirage.mugraph.derivations.arithmetic import MUL, SUB
from taso_mirage.mugraph.derivations.kind import DerivationEdge
from taso_mirage.mugraph.field_check import Field32, refuted_derivations
from taso_mirage.mugraph.labels import label
from taso_mirage.mugraph.search import Search, SearchOptions
from taso_mirage.mugraph.verification import verified_mugraph
from taso_mirage.onnx_io import from_ir, serialize
from taso_mirage.operators.interpret import interpret
from taso_mirage.operators.ops import term
from taso_mirage.regions.fragments import fragments
from taso_mirage.regions.region_kinds import of_integers
from taso_mirage.runtime.embed import EmbeddedRegion, embed
from taso_mirage.runtime.plan import cuda_kernel
from taso_mirage.targets.protocol import Trusted
from taso_mirage.verdicts import Evidence, Failure, FailureKind

COLUMNS, INNER = 32, 128
NONE: MappingProxyType[str, str] = MappingProxyType({})


def goal(rows: int, bits: int, block: int, zeros: str = "", inner: int = INNER, columns: int = COLUMNS) -> Graph:
    blocks = inner // block
    leaves = [
        variable("x", Tensor("float16", (rows, inner))),
        variable("b", Tensor("uint8", (columns, blocks, block * bits // 8))),
        variable("s", Tensor("float16", (columns, blocks))),
    ]
    if zeros:
        packed = Tensor("uint8", (columns, blocks * bits // 8))
        leaves.append(variable("z", Tensor("float16", (columns, blocks)) if zeros == "float" else packed))
    return Graph(tuple(leaves), (product(leaves, bits, block),))


def product(leaves: list[Node], bits: int, block: int) -> Node:
    x, b, *others = leaves
    operands = [x, b, *others, ABSENT][:4]
    (columns, *_), inner = b.shape, x.shape[-1]
    return term("matmul_nbits", *operands, K=inner, N=columns, bits=bits, block_size=block)


def drawn(node: Node, rng: np.random.Generator) -> np.ndarray:
    if node.dtype == "uint8":
        return rng.integers(0, 256, node.shape).astype(np.uint8)
    return rng.normal(size=node.shape).astype(np.float16)


# ---------------------------------------------------------------- code

CASES = {
    "one_row": (1, 4, 32, ""),
    "one_row_zeros": (1, 4, 32, "packed"),
    "one_row_bytes": (1, 8, 32, "float"),
    "rows": (3, 4, 32, ""),
    "rows_zeros": (3, 4, 64, "packed"),
    "rows_bytes": (3, 8, 32, "packed"),
    "short_blocks": (1, 4, 4, ""),
    "whole_blocks": (1, 4, 128, "", 768, 24),
    "whole_blocks_zeros": (1, 4, 128, "packed", 2048, 16),
    "whole_blocks_bytes": (1, 8, 128, "packed", 512, 16),
    "long_blocks": (1, 4, 256, "", 1024, 16),
    "float_zeros": (1, 4, 128, "float", 1024, 16),
    "quarters_of_lines": (1, 4, 32, "packed", 1024, 16),
    "halves_of_lines": (1, 4, 64, "packed", 1024, 16),
    "quarters_of_bytes": (1, 8, 16, "", 512, 16),
    "halves_of_bytes": (1, 8, 32, "packed", 512, 16),
}
WHOLE = {"whole_blocks", "whole_blocks_zeros", "whole_blocks_bytes", "long_blocks"}
OF_BLOCKS = WHOLE | {"one_row", *(name for name in CASES if "_of_" in name)}
"""Cases in which all blocks of a group are multiplied with each other (`gpu/block_products.py`),
whole ones or parts of a line of 64 bytes."""
LEFT = "left = tl.reshape("
"""The text of such a program."""
FEW = 80
"""Candidates among which there is such a program, if there is any."""


@cache
def of_blocks(graph: Graph, best: int) -> TritonProgram:
    """The first program of such products among the `best` by the model, or else the first.

    The given ones are verified; the search would verify all.
    """
    search, first = Search(graph, SearchOptions()), None
    for each in islice(search.candidates(), best):
        made = each.graph()
        with suppress(Unsupported):
            if made is not None and (first is None or LEFT in program(made).source):
                found = search.accepted(each)
                first = first if found is None else found.program()
        if first is not None and LEFT in first.source:
            break
    assert first is not None
    return first


@pytest.fixture(scope="module")
def interpreted(tmp_path_factory: pytest.TempPathFactory) -> Path:
    pytest.importorskip("triton", reason="the extra `triton` is not installed")
    folder, programs = tmp_path_factory.mktemp("triton"), {}
    for name, case in CASES.items():
        graph, rng = goal(*case), np.random.default_rng(0)
        programs[name] = of_blocks(graph, FEW).source, graph, [drawn(x, rng) for x in graph.inputs]
    in_turn.interpreted(folder, programs)
    return folder


@pytest.mark.sampled(3, together=True)
@pytest.mark.parametrize("name", CASES)
def test_generated_code_computes_the_product(name: str, interpreted: Path) -> None:
    graph = goal(*CASES[name])
    rng = np.random.default_rng(0)
    given = {x: EXACT.load(drawn(x, rng)) for x in graph.inputs}
    (wanted,) = interpret(graph.outputs, EXACT, given).values()
    found = np.load(interpreted / f"{name}.npy")
    assert np.linalg.norm(found - wanted) < 1e-3 * np.linalg.norm(wanted)


def test_weights_are_loaded_as_words_and_short_blocks_as_bytes() -> None:
    words, rows = (searched(goal(*CASES[name]))[0].program() for name in ("one_row", "short_blocks"))
    assert "b.to(tl.pointer_type(tl.int32))" in words.source
    assert "pointer_type" not in rows.source
    assert words.buffer("b").dtype == "uint8"


@pytest.mark.sampled(3)
@pytest.mark.parametrize(("rows", "bits"), [(1, 4), (16, 4), (8, 8)])
def test_real_sizes_compile_for_an_h100(rows: int, bits: int) -> None:
    pytest.importorskip("triton", reason="the extra `triton` is not installed")
    found = searched(goal(rows, bits, 128, "packed", 4096, 4096))[0].program()
    (first, *_) = compiled(found, 90, [launch.schedule for launch in found.launches])
    assert first.shared < 227 * 1024


@pytest.mark.sampled(3)
@pytest.mark.parametrize("best", [FEW, pytest.param(200, marks=pytest.mark.slow)])
@pytest.mark.parametrize("name", CASES)
def test_one_row_of_whole_blocks_is_a_product_of_matrices(name: str, best: int) -> None:
    """Zeros that are floats would be rounded."""
    assert (LEFT in of_blocks(goal(*CASES[name]), best).source) == (name in OF_BLOCKS)


@pytest.mark.sampled(3)
@pytest.mark.parametrize(("bits", "block"), [(4, 128), (8, 128), (4, 32), (4, 64), (8, 32)])
def test_weights_are_loaded_before_the_wait_and_stay_in_registers(bits: int, block: int) -> None:
    pytest.importorskip("triton", reason="the extra `triton` is not installed")
    found = overlapped(of_blocks(goal(1, bits, block, "", 4096, 4096), FEW))
    (kernel,) = compiled(found, 90, [launch.schedule for launch in found.launches])
    before, after = kernel.ptx.split("griddepcontrol.wait")
    pieces = [part.count("ld.global.v4") for part in (before, after)]
    assert pieces[0] > pieces[1] > 0  # x is loaded after it
    assert "mma.sync" in after
    assert kernel.shared <= (4096 if block == 128 else 32768)  # for the sums of warps, and for parts of lines of x


def test_weights_that_the_model_computes_are_in_no_region() -> None:
    """Kernels would load them before they are there."""
    held = [weight(k, x.tensor) for k, x in zip("xbs", goal(1, 4, 32).inputs, strict=True)]
    x, b, s = goal(1, 4, 32).inputs
    products = [product(leaves, 4, 32) for leaves in ([x, *held[1:]], [x, b, held[2]], [x, held[1], s])]
    assert [of_integers(each, gpu=True) for each in products] == [False, True, True]
    computed = term("mul", held[2], constant(2.0, "float16"))
    assert of_integers(product([x, held[1], computed], 4, 32), gpu=True)


def test_zeros_of_a_byte_are_in_one_block() -> None:
    """Two zeros of four bits are in one byte, so tiles have an even number of blocks."""
    for candidate in Search(goal(1, 4, 32, "packed", 1024), SearchOptions()).candidates()[:200]:
        blocks = {each.tiles[x] for each in candidate.plan for x in candidate.closure.goal.steps if x in each.tiles}
        assert blocks
        assert all(n % 2 == 0 for n in blocks)


# ---------------------------------------------------------------- wrong programs


def swapped(leaves: list[Node]) -> list[Node]:
    """The numbers of each byte the other way round."""
    x, b, *others = leaves
    four = constant(np.uint8(4))
    high, low = (term("bit_shift", b, four, direction=d) for d in ("RIGHT", "LEFT"))
    return [x, term("bitwise_or", high, low), *others]


def next_zero(leaves: list[Node]) -> list[Node]:
    x, b, s, z = leaves
    return [x, b, s, term("add", z, constant(1.0, "float16"))]


def turned_scales(leaves: list[Node]) -> list[Node]:
    """The scales along the other axis."""
    x, b, s, *others = leaves
    return [x, b, term("transpose", s, perm=(1, 0)), *others]


def neighbours(leaves: list[Node]) -> list[Node]:
    """The scale of the next block."""
    x, b, s, *others = leaves
    ends = [term("slice", s, axes=(1,), starts=(i,), ends=(j,), steps=(1,)) for i, j in ((1, 4), (0, 1))]
    return [x, b, term("concat", *ends, axis=1), *others]


def bits_of_bytes(leaves: list[Node]) -> list[Node]:
    """The numbers of a block in the order of all low ones, then all high ones: of bytes turned."""
    x, b, *others = leaves
    ends = [term("slice", b, axes=(2,), starts=(i,), ends=(j,), steps=(1,)) for i, j in ((1, 2), (0, 1))]
    return [x, term("concat", *ends, axis=2), *others]


WRONG = {each.__name__: each for each in (swapped, next_zero, turned_scales, neighbours, bits_of_bytes)}


def small() -> Graph:
    """A goal with as many columns as blocks, so that scales may lie along either axis."""
    return goal(2, 4, 4, "float", 16, 4)


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_product_is_refuted(name: str) -> None:
    graph = small()
    found = searched(graph)[0].graph
    assert isinstance(verified_mugraph(found, graph), Evidence)
    wrong = Graph(graph.inputs, (product(WRONG[name](list(graph.inputs)), 4, 4),))
    verdict = verified_mugraph(found, wrong)
    assert isinstance(verdict, Failure)
    assert verdict.kind is FailureKind.REFUTED


def test_wrong_derivations_are_refuted() -> None:
    """A zero that is a scale, a scale that is a zero, and a difference the other way round."""
    labelled = label(small())
    closure = close(labelled)
    place = {s: i for i, s in enumerate(closure.sketches)}
    b, s, z = (place[labelled.views[name]] for name in "bsz")
    centred = next(i for i, edges in enumerate(closure.edges) if DerivationEdge(SUB, (b, z)) in edges)
    edges = [list(each) for each in closure.edges]
    wrong = [DerivationEdge(SUB, (b, s)), DerivationEdge(MUL, (b, z)), DerivationEdge(SUB, (z, b))]
    edges[centred] += wrong
    assert refuted_derivations(labelled, closure.sketches, edges, 0) == {(centred, each) for each in wrong}


def test_bytes_are_any_in_the_field() -> None:
    data = Field32(4, 0).fresh(Tensor("uint8", (64, 64))).data
    assert data.min() == 0
    assert data.max() == 255
    assert len(np.unique(data)) == 256


def test_integers_are_not_computed_with() -> None:
    """Integers wrap, which floats do not."""
    x, y = variable("x", Tensor("uint8", (4, 8))), variable("y", Tensor("uint8", (4, 8)))
    with pytest.raises(Unsupported, match="arithmetic of uint8"):
        label(Graph((x, y), (term("cast", term("add", x, y), to="float16"),)))


# ---------------------------------------------------------------- regions


def gated_mlp(zeros: bool = True) -> Model:
    """A norm, a gated MLP of blocks, and the residual."""
    width, hidden, block = 64, 128, 32
    rng = np.random.default_rng(0)
    held, nodes = [numpy_helper.from_array(np.ones(width, np.float16), "gamma")], []

    def linear(x: str, name: str, inner: int, columns: int) -> str:
        shapes = {"b": (columns, inner // block, block // 2), "z": (columns, inner // block // 2)}
        held.extend(
            numpy_helper.from_array(rng.integers(0, 256, shape).astype(np.uint8), name + k)
            for k, shape in shapes.items()
        )
        held.append(
            numpy_helper.from_array((rng.random((columns, inner // block)) / 64).astype(np.float16), name + "s")
        )
        operands = [x, name + "b", name + "s", *([name + "z"] if zeros else [])]
        attributes = {"domain": "com.microsoft", "K": inner, "N": columns, "bits": 4, "block_size": block}
        nodes.append(helper.make_node("MatMulNBits", operands, [name], name, **attributes))
        return name

    nodes.append(helper.make_node("SimplifiedLayerNormalization", ["x", "gamma"], ["normed"], "norm", axis=-1))
    gate, up = linear("normed", "gate", width, hidden), linear("normed", "up", width, hidden)
    nodes.append(helper.make_node("Sigmoid", [gate], ["sigmoid"], "sigmoid"))
    nodes.append(helper.make_node("Mul", [gate, "sigmoid"], ["silu"], "silu"))
    nodes.append(helper.make_node("Mul", ["silu", up], ["gated"], "gated"))
    nodes.append(helper.make_node("Add", ["x", linear("gated", "down", hidden, width)], ["y"], "residual"))
    x, y = (helper.make_tensor_value_info(name, TensorProto.FLOAT16, [1, 1, width]) for name in "xy")
    graph = helper.make_graph(nodes, "mlp", [x], [y], held)
    opsets = [helper.make_opsetid("", 18), helper.make_opsetid("com.microsoft", 1)]
    return from_ir(onnx_ir.from_proto(helper.make_model(graph, opset_imports=opsets, ir_version=10)))


def test_a_gated_mlp_is_two_regions_on_a_gpu() -> None:
    """The search for products of blocks in turn takes a minute. Weights, scales and zero points of
    a product count as one operand."""
    found = [{*sites[0].names} for sites in fragments(gated_mlp(), NONE, lanes=4).values()]
    assert [names for names in found if {"gate", "up", "silu", "gated"} <= names]
    assert [names for names in found if {"down", "residual"} <= names]
    assert not [names for names in found if {"up", "down"} <= names]


def test_products_of_blocks_are_in_no_region_elsewhere() -> None:
    found = {name for sites in fragments(gated_mlp(), NONE).values() for site in sites for name in site.names}
    assert found.isdisjoint({"gate", "up", "down"})


def with_kernel(model: Model, capability: int) -> Model:
    """The model with a kernel in place of the first part of its gated MLP."""
    graph, sites = next(each for each in fragments(model, NONE, lanes=4).items() if "gate" in each[1][0].names)
    program = searched(graph)[0].program()
    planned = cuda_kernel(program, everywhere(program, capability, ()), [])
    return embed(model, [EmbeddedRegion(site.inputs, site.outputs, planned) for site in sites])


def feed() -> dict[str, np.ndarray]:
    return {"x": np.random.default_rng(1).normal(size=(1, 1, 64)).astype(np.float16)}


def run(model: Model) -> np.ndarray:
    session = onnxruntime.InferenceSession(serialize(model), providers=["CPUExecutionProvider"])
    return np.asarray(session.run(None, feed())[0])


@pytest.mark.sampled(5)
def test_a_model_with_a_kernel_keeps_its_operators() -> None:
    pytest.importorskip("triton", reason="the extra `triton` is not installed")
    model = gated_mlp(zeros=False)
    np.testing.assert_array_equal(run(with_kernel(model, 90)), run(model))


@pytest.mark.skipif("CUDAExecutionProvider" not in working_providers(), reason="needs a GPU")
def test_a_kernel_runs_in_a_model_on_a_gpu() -> None:
    model, device = gated_mlp(zeros=False), gpu()
    assert device is not None
    session = Session(Trusted(serialize(with_kernel(model, device.capability))), CUDA)
    found, wanted = np.asarray(session.run(feed())[0], np.float64), run(model).astype(np.float64)
    assert session.captures
    assert np.linalg.norm(found - wanted) < 4e-3 * np.linalg.norm(wanted)
