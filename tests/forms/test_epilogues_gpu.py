"""Epilogues of the hand-written kernels of a GPU: any elementwise function in every form, in
Triton's interpreter and as cubins; which operators of a model they are; wrong ones are refused."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from epilogue_functions import CHANNELS, FUNCTIONS, IMAGES, RESULTS, leaves, right_body, silu, wrong_bodies
from followed_terms import with_convolutions
from form_programs import program_errors, same_model, same_results

from taso_mirage.devices.cuda.device import H100
from taso_mirage.emit import triton, tune
from taso_mirage.emit.compile import compiled
from taso_mirage.emit.gpu.program import IEEE
from taso_mirage.errors import Unsupported
from taso_mirage.forms.base.form import in_operators
from taso_mirage.ir.model import Model, StoredWeight
from taso_mirage.ir.terms import ABSENT, Graph, Node, Tensor, variable, weight
from taso_mirage.mugraph.search import Search, SearchOptions
from taso_mirage.mugraph.verification import verified_mugraph
from taso_mirage.onnx_io.build import standalone
from taso_mirage.operators.ops import term
from taso_mirage.verdicts import Evidence, Failure

pytest.importorskip("torch")
pytest.importorskip("triton", reason="the extra `triton` is not installed")
SAME: dict[str, Any] = {"strides": (1, 1), "pads": (1, 1, 1, 1), "dilations": (1, 1)}


def leaf(name: str, *shape: int, dtype: str = "float32") -> Node:
    return variable(name, Tensor(dtype, shape))


def implicit(name: str, dtype: str = "float32", group: int = 2) -> Graph:
    """A convolution with channels last, of products of matrices, or of elements for 6 groups."""
    x, w = leaf("x", 2, 5, 4, 6, dtype=dtype), leaf("w", 3, 3, 6 // group, 6, dtype=dtype)
    how: dict[str, Any] = {**SAME, "group": group, "merged": 1, "block": (16, 16, 16, 0)}
    if group == 6:
        how |= {"block": (32, 4, 1, 0)}
    return _followed("implicit_gemm", name, [x, w, None, None], how, 3, dtype)


def pooled(name: str, dtype: str = "float16") -> Graph:
    how = {"kernel": (3, 3), "strides": (2, 2), "pads": (1, 1, 1, 1), "dilations": (1, 1), "block": (4, 8)}
    return _followed("max_pool_last", name, [leaf("x", 2, 7, 6, 6, dtype=dtype)], how, 3, dtype)


def shifted(name: str) -> Graph:
    x, w = leaf("x", 2, 3, 5, 4), leaf("w", 2, 3, 5, 3, 3)
    return _followed("shifted_conv", name, [x, w], {**SAME, "block": (16, 16, 16, 1)}, 1)


def depthwise(name: str) -> Graph:
    x, w = leaf("x", 2, 3, 5, 4), leaf("w", 3, 1, 3, 3)
    return _followed("depthwise_conv", name, [x, w], {**SAME, "block": (2, 8, 2)}, 1)


def transposed(name: str) -> Graph:
    x, w = leaf("x", 2, 4, 3, 4), leaf("w", 4, 2, 3, 3)
    how = {**SAME, "strides": (2, 2), "extra": (1, 1), "each": 2, "block": (2, 16)}
    return _followed("grouped_conv_transpose", name, [x, w], how, 1)


def _followed(
    op: str, name: str, given: list[Node | None], how: dict[str, Any], channel: int, dtype: str = "float32"
) -> Graph:
    """A term of a form with an epilogue, whose operands have channels in this dim."""
    function = FUNCTIONS[name]
    alone = {} if op in ("implicit_gemm", "max_pool_last") else {"body": FUNCTIONS["relu"].body()}
    shape = tuple(map(int, term(op, *given, **{**how, **alone}).shape))
    ones = [1] * len(shape)
    kinds = {
        CHANNELS: (*ones[:channel], shape[channel], *ones[channel + 1 :]),
        IMAGES: (shape[0], *ones[1:channel], shape[channel], *ones[channel + 1 :]),
        RESULTS: shape,
    }
    kinds[CHANNELS] = kinds[CHANNELS] if channel == 1 else (shape[channel],)
    others = leaves(function.others, kinds, dtype)
    made = term(op, *given, *others, **how, body=function.body(dtype))
    return Graph(tuple([each for each in (*given, *others) if each is not None]), (made,))


def preceded(name: str, group: int, channels: int = 6) -> Graph:
    """A convolution with channels last of a function of its data, and silu of the result."""
    function, dtype = FUNCTIONS[name], "float16" if group == 1 else "float32"
    x, w = leaf("x", 2, 5, 4, channels, dtype=dtype), leaf("w", 3, 3, channels // group, 6, dtype=dtype)
    kinds = {CHANNELS: (channels,), IMAGES: (2, 1, 1, channels), RESULTS: (2, 5, 4, channels)}
    others = leaves(function.others, kinds, dtype)
    how: dict[str, Any] = {**SAME, "group": group, "merged": 1, "block": (16, 16, 16, 0)}
    how |= {"block": (32, 4, 1, 0)} if group == 6 else {}
    how |= {"prologue": function.body(dtype), "body": FUNCTIONS["silu"].body(dtype)}
    return Graph((x, w, *others), (term("implicit_gemm", x, w, None, None, *others, **how),))


PRECEDED = {
    "preceded: a row": preceded("excited", 1),
    "preceded: matrices": preceded("excited", 1, 34),
    "preceded: parts": preceded("scale and shift", 2),
    "preceded: elements": preceded("excited", 6),
    "preceded: a sum": preceded("sum, then silu", 2),
    "preceded: one": preceded("hard sigmoid", 1),
}


FORMS: dict[str, Callable[[str], Graph]] = {
    "implicit": implicit,
    "of elements": lambda name: implicit(name, group=6),
    "halves": lambda name: implicit(name, "float16"),
    "pool": pooled,
    "shifted": shifted,
    "depthwise": depthwise,
    "transposed": transposed,
}
FEW = ("silu", "relu6", "excited", "all")
BOUND = {"float16": 4e-3, "float32": 3e-6}


def cases() -> Iterator[tuple[str, Graph]]:
    """A few functions in every form, and every function in one form, another one for each."""
    for i, name in enumerate(FUNCTIONS):
        for j, form in enumerate(FORMS):
            if name in FEW or (i + j) % len(FORMS) == 0:
                yield f"{form}: {name}", FORMS[form](name)
    yield from PRECEDED.items()


def program(made: Graph) -> str:
    """The text, which keeps all digits of products."""
    found = triton.program(made)
    (launch,) = found.launches
    if not launch.precisions:
        return found.source
    return tune.scheduled(found, 0, replace(launch.schedule, precision=IEEE)).source


@pytest.fixture(scope="module")
def errors(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[float]]:
    """The errors of all programs, from one process."""
    given = [(name, program(made), [Graph(made.inputs, in_operators(made.outputs))]) for name, made in cases()]
    return program_errors(given, tmp_path_factory.mktemp("epilogues"))


@pytest.mark.parametrize("form", FORMS)
def test_programs_compute_the_functions(form: str, errors: dict[str, list[float]]) -> None:
    """At odd sizes, where blocks are not full."""
    found = {name: error for name, (error,) in errors.items() if name.startswith(f"{form}:")}
    assert len(found) >= len(FEW)
    bound = BOUND["float16" if form in ("halves", "pool") else "float32"]
    assert {name: error for name, error in found.items() if not error < bound} == {}


def test_programs_compute_functions_of_their_data(errors: dict[str, list[float]]) -> None:
    """The zeros around the image stay zero, where the function of 0 is another number."""
    found = {name: error for name, (error,) in errors.items() if name in PRECEDED}
    assert len(found) == len(PRECEDED)
    bounds = {name: BOUND[PRECEDED[name].inputs[0].dtype] for name in found}
    assert {name: error for name, error in found.items() if not error < bounds[name]} == {}


@pytest.mark.parametrize(
    "form", [f if f in ("halves", "depthwise") else pytest.param(f, marks=pytest.mark.slow) for f in FORMS]
)
def test_programs_become_cubins(form: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    program = triton.program(FORMS[form]("all"))
    (found,) = compiled(program, 90, (program.launches[0].schedule,))
    assert found.cubin


def test_wrong_epilogues_are_refused() -> None:
    """The term with another function computes something else than the goal."""
    x, w, b, z = leaf("x", 2, 4, 5, 3), leaf("w", 3, 3, 3, 4), leaf("b", 4), leaf("z", 2, 4, 5, 4)
    body = right_body()
    how = {**SAME, "group": 1, "merged": 1}
    goal = Graph((x, w, b, z), in_operators([term("implicit_gemm", x, w, None, None, b, z, **how, body=body)]))
    assert "mul" in [node.op for node in goal]

    def found(body: Graph) -> Evidence | Failure:
        made = term("implicit_gemm", x, w, None, None, b, z, **how, body=body)
        return verified_mugraph(Graph(goal.inputs, (made,)), goal)

    assert isinstance(found(body), Evidence)
    for name, wrong in wrong_bodies(body).items():
        assert isinstance(found(wrong), Failure), name


def test_other_numbers_for_each_image_have_no_form_in_gluon() -> None:
    x, w = leaf("x", 2, 64, 16, 16), leaf("w", 2, 3, 64, 3, 64)
    made = _followed("shifted_conv", "excited", [x, w], {**SAME, "block": (128, 64, 32, 3)}, 1)
    with pytest.raises(Unsupported, match="for each image"):
        triton.program(made, specialized=True)


# ---------------------------------------------------------------- models


def block(dtype: str, group: int = 1) -> Model:
    """Convolutions with silu, a scale of each channel, squeeze and excitation, and sums."""
    rng = np.random.default_rng(0)
    weights: dict[str, StoredWeight] = {}

    def known(name: str, *shape: int) -> Node:
        weights[name] = StoredWeight((rng.normal(size=shape) / 3).astype(dtype))
        return weight(name, Tensor(dtype, shape))

    def conv(data: Node, name: str, side: int, group: int = 1) -> Node:
        kernel, bias = known(f"w{name}", 8, 8 // group, side, side), known(f"b{name}", 8)
        pads = (side // 2,) * 4
        return term("conv", data, kernel, bias, strides=(1, 1), pads=pads, dilations=(1, 1), group=group)

    x = leaf("x", 2, 8, 6, 5, dtype=dtype)
    first = silu(conv(x, "a", 3))
    second = silu(term("mul", conv(first, "b", 3, group), known("s", 8, 1, 1)))
    pooled = term("reduce_mean", second, axes=(2, 3), keepdims=1)
    gate = term("sigmoid", conv(term("swish", conv(pooled, "c", 1)), "d", 1))
    third = conv(term("mul", second, gate), "e", 1)
    last = term("gelu", term("add", term("mul", conv(third, "f", 3), gate), x))
    return standalone(Graph((x,), (last,)), {"": 20}, weights)


@pytest.mark.parametrize(("dtype", "group"), [("float16", 1), ("float16", 8), ("float32", 1), ("float32", 8)])
def test_a_model_with_epilogues_is_the_model(dtype: str, group: int) -> None:
    """All elementwise operators behind convolutions are in their terms, but those of a value that
    is read twice."""
    model = block(dtype, group)
    made = with_convolutions(model)
    if dtype == "float32":
        same_results(made.model, model)
        assert made.without_rest(made.model).graph == model.graph
    else:
        same_model(made, model)
    operators = [node.op for node in made.model.nodes()]
    assert operators.count("sigmoid") == 0
    assert operators.count("gelu") == 0
    assert operators.count("mul") == (dtype == "float32"), "of the image by its gate, before a convolution"


def test_a_pool_has_its_epilogue() -> None:
    model = block("float16")
    conv = next(node for node in model.nodes() if node.op == "conv")
    how = {"kernel": (2, 2), "strides": (2, 2), "pads": (0, 0, 0, 0), "dilations": (1, 1)}
    used = {n.attr("name") for n in conv.args if n.op == "weight"}
    known = {name: each for name, each in model.weights.items() if name in used}
    whole = model.with_graph((silu(term("max_pool", conv, **how)),), known)
    made = with_convolutions(whole)
    same_results(made.model, whole)
    assert [node.op for node in made.model.nodes() if node.op in ("sigmoid", "mul")] == []


def test_terms_of_models_have_programs() -> None:
    for dtype, group in (("float16", 8), ("float32", 8)):
        for node in with_convolutions(block(dtype, group)).model.nodes():
            if node.op in ("implicit_gemm", "shifted_conv", "depthwise_conv"):
                inputs = [a if a is ABSENT else variable(f"x{i}", a.tensor) for i, a in enumerate(node.args)]
                made = term(node.op, *inputs, **dict(node.attrs))
                assert triton.program(Graph(tuple([x for x in inputs if x is not ABSENT]), (made,))).source


def test_the_search_finds_attention_with_an_epilogue() -> None:
    """One kernel for attention, a gate, a sum and gelu, all of which are in its body."""
    q, k = leaf("q", 8, 64, 64, dtype="float16"), leaf("k", 8, 64, 128, dtype="float16")
    v, g, z = (leaf(name, 8, n, 64, dtype="float16") for name, n in (("v", 128), ("g", 64), ("z", 64)))
    seen = term("matmul", term("softmax", term("matmul", q, k), axis=2), v)
    goal = Graph((q, k, v, g, z), (term("gelu", term("add", term("mul", seen, term("swish", g)), z)),))
    (found,) = Search(goal, SearchOptions(), H100, 0).run(1, 60.0)
    assert [node.op for node in found.graph if node.args] == ["kernel"]
    assert found.evidence.tests >= 8
    assert triton.program(found.graph).source


def gpu_golden() -> Iterator[tuple[str, Graph]]:
    """The muGraphs whose programs are kept (`tests/golden`)."""
    for form, make in FORMS.items():
        yield f"epilogues/{form}", make("all")
    yield from ((f"epilogues/{name.replace(': ', ' ')}", made) for name, made in PRECEDED.items())
