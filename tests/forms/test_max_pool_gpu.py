"""Pools with channels last as kernels for a GPU: they compute the pool, in the field, in numbers
and in Triton's interpreter; and how a model has them beside its convolutions."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from followed_terms import with_convolutions
from form_programs import Case, program_errors, same_model, unseen_changes, wrong_cases

from taso_mirage.devices.cuda.device import H100
from taso_mirage.emit import triton
from taso_mirage.errors import IllTyped, Unsupported
from taso_mirage.forms.base.form import GPU_GOALS, in_operators
from taso_mirage.forms.max_pool import MaxPoolLast
from taso_mirage.ir.dims import symbol
from taso_mirage.ir.model import Model, StoredWeight
from taso_mirage.ir.terms import Graph, Node, Tensor, substitute, variable, weight
from taso_mirage.mugraph.free import FreeSizes, with_free_names
from taso_mirage.mugraph.verification import verified_mugraph
from taso_mirage.onnx_io.build import standalone
from taso_mirage.operators.ops import term
from taso_mirage.verdicts import Evidence

torch = pytest.importorskip("torch")
pytest.importorskip("triton", reason="the extra `triton` is not installed")
N, S, T = symbol("n0"), symbol("n1"), symbol("n2")
SAME = {"kernel": (3, 3), "strides": (2, 2), "pads": (1, 1, 1, 1), "dilations": (1, 1)}
Goal = tuple[MaxPoolLast, Graph]


def pooled(image: tuple[int, ...], dtype: str = "float32", name: str = "x", **attrs: tuple[int, ...]) -> Goal:
    """A pool of an image (n,h,w,c), and its goal in operators of ONNX."""
    x = variable(name, Tensor(dtype, image))
    node = term("max_pool_last", x, **{**SAME, **attrs})
    return MaxPoolLast(node), Graph((x,), in_operators((node,)))


FORMS: dict[str, tuple[Goal, tuple[int, int]]] = {
    "plain": (pooled((2, 9, 7, 5)), (16, 4)),
    "parts of channels": (pooled((1, 6, 7, 37), strides=(1, 1)), (8, 16)),
    "a wide kernel": (pooled((1, 9, 11, 3), kernel=(2, 5), strides=(1, 3), pads=(0, 2, 1, 1)), (16, 2)),
    "dilations": (pooled((2, 9, 9, 6), dilations=(2, 3), pads=(0, 1, 2, 0)), (4, 8)),
    "one element": (pooled((3, 4, 4, 33), kernel=(1, 1), pads=(0, 0, 0, 0)), (16, 32)),
    "halves": (pooled((2, 9, 7, 8), dtype="float16"), (16, 8)),
    "own names": (pooled((2, 5, 5, 4), name="largest"), (16, 4)),
}


def program(goal: Goal, block: tuple[int, int]) -> Any:
    return triton.program(Graph(goal[1].inputs, (goal[0].mugraph(block),)))


WRONG = (
    ("a row further", r"% 5 \* 2 - 1\n", "% 5 * 2\n"),
    ("above the image", r"\(row >= 0\) & ", ""),
    ("beside the image", r" & \(column < 7\)", ""),
    ("zeros for what is beyond", r"float\('-inf'\)\)\n", "0.0)\n"),
    ("an element left out", r"row = top \+ 2\n", "row = top + 1\n"),
    ("another channel", r"\* 4 \+ tl.arange", "* 5 + tl.arange"),
    ("the smallest", r"tl.maximum", "tl.minimum"),
)
"""Changes of the program of `plain`, which make it wrong."""


@pytest.fixture(scope="module")
def errors(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[float]]:
    """The errors of all forms, of wrong programs, and of one with free sizes at several, from one
    process."""
    cases: list[Case] = [(name, program(goal, block).source, [goal[1]]) for name, (goal, block) in FORMS.items()]
    goal, block = FORMS["plain"]
    cases += wrong_cases(program(goal, block).source, WRONG, goal[1])
    made, whole = pooled((2, 8, 6, 5))
    free = FreeSizes(((N, S, T, 5),), ((N, (S - 1) // 2 + 1, (T - 1) // 2 + 1, 5),))
    source = triton.program(with_free_names(Graph(whole.inputs, (made.mugraph((16, 8)),)), free)).source
    cases.append(("free", source, [pooled((*sizes, 5))[1] for sizes in ((1, 7, 4), (3, 2, 9))]))
    return program_errors(cases, tmp_path_factory.mktemp("pools"))


@pytest.mark.sampled(3, together=True)
@pytest.mark.parametrize("name", [*FORMS, "free"])
def test_the_kernel_computes_the_pool(name: str, errors: dict[str, list[float]]) -> None:
    """The sizes are odd: blocks that are not full, channels that are no powers of two."""
    assert len(errors[name]) == (2 if name == "free" else 1)
    assert max(errors[name]) == 0.0


@pytest.mark.sampled(3, together=True)
def test_what_is_wrong_in_a_program_is_seen(errors: dict[str, list[float]]) -> None:
    assert unseen_changes(program(*FORMS["plain"]).source, WRONG, errors) == []


@pytest.mark.parametrize("name", FORMS)
def test_the_definition_is_the_pool(name: str) -> None:
    (made, _), block = FORMS[name]
    small, goal = made.small()
    found = verified_mugraph(Graph(goal.inputs, (small.mugraph(block),)), goal)
    assert isinstance(found, Evidence)
    assert found.tests >= 8


def test_every_mutant_is_refused() -> None:
    small, goal = pooled((1, 7, 8, 4))[0].small()
    (x,) = goal.inputs
    for other in ({"strides": (2, 1)}, {"pads": (0, 1, 2, 1)}, {"kernel": (3, 2), "pads": (1, 1, 1, 0)}):
        made = term("max_pool_last", x, **{**dict(small.node.attrs), **other})
        assert not isinstance(verified_mugraph(Graph((x,), (made,)), goal), Evidence), other


def test_what_has_no_form_says_why() -> None:
    for goal, block, said in (
        (pooled((1, 5, 5, 4)), (24, 4), "powers of two"),
        (pooled((1, 5, 5, 4), dtype="float64"), (16, 4), "max_pool_last of float64"),
        (pooled((1, 20, 20, 4), kernel=(8, 8)), (16, 4), "at most 49 elements"),
    ):
        with pytest.raises(Unsupported, match=said):
            program(goal, block)
    with pytest.raises(Unsupported, match="max_pool_last, which has no form in Gluon"):
        triton.program(Graph(FORMS["plain"][0][1].inputs, (FORMS["plain"][0][0].mugraph((16, 4)),)), specialized=True)
    with pytest.raises(IllTyped, match="blocks of"):
        pooled((1, 5, 5, 4))[0].mugraph((16,))


def test_muGraphs_are_ranked_by_the_devices_model() -> None:
    goal = pooled((16, 112, 112, 64), dtype="float16")
    found = goal[0].mugraphs(Graph(goal[1].inputs, (goal[0].node,)), H100)
    assert len(found) > 4
    assert [each.seconds for each in found] == sorted(each.seconds for each in found)
    floor = sum(b.bytes for b in triton.program(found[0].graph).buffers) / H100.bandwidth
    assert floor < found[0].seconds < 4 * floor


# ---------------------------------------------------------------- in a model


def model(dtype: str = "float16", convolved: bool = True) -> Model:
    """relu(conv), its pool, and a convolution of that; or the pool alone."""
    rng, weights = np.random.default_rng(0), dict[str, StoredWeight]()
    x = variable("x", Tensor(dtype, (2, 8, 9, 7)))

    def conv(data: Node, name: str) -> Node:
        weights[name] = StoredWeight((rng.normal(size=(8, 8, 3, 3)) / 9).astype(dtype))
        attrs = {"strides": (1, 1), "pads": (1, 1, 1, 1), "dilations": (1, 1), "group": 1}
        return term("conv", data, weight(name, Tensor(dtype, (8, 8, 3, 3))), **attrs)

    pool = term("max_pool", term("relu", conv(x, "a")) if convolved else x, **SAME)
    return standalone(Graph((x,), (conv(pool, "b") if convolved else pool,)), {"": 20}, weights)


def test_a_model_with_such_pools_is_the_model() -> None:
    given = model()
    made = with_convolutions(given)
    kinds = Counter(n.op for n in made.model.nodes() if n.args)
    assert (kinds["max_pool_last"], kinds["max_pool"], kinds["implicit_gemm"]) == (1, 0, 2)
    same_model(made, given)
    pools = [n for n in made.model.nodes() if n.op == "max_pool_last"]
    leaf = variable("y", pools[0].args[0].tensor)
    goal = Graph((leaf,), substitute(pools, {pools[0].args[0]: leaf}))
    assert isinstance(GPU_GOALS.prepared(goal, pools[0].args), MaxPoolLast)


@pytest.mark.parametrize("given", [model(convolved=False), model("float32")], ids=["no convolution", "single"])
def test_other_pools_stay(given: Model) -> None:
    """Without a convolution beside it that has channels last, a pool would only be turned."""
    assert [n.op for n in with_convolutions(given).model.nodes()].count("max_pool") == 1


def gpu_golden() -> Iterator[tuple[str, Graph]]:
    """The muGraphs whose programs are kept (`tests/golden`)."""
    for name, ((made, goal), block) in FORMS.items():
        yield f"max pool/{name}", Graph(goal.inputs, (made.mugraph(block),))
