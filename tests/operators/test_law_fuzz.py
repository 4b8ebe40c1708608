"""Rules and laws in ONNX Runtime: a part of them each day, planted faults, and earlier errors."""

from __future__ import annotations

from collections import Counter
from random import Random
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from fuzz.law_judge import DEFINITION, DIFFERENT, EQUAL, FAILS, compared
from fuzz.law_pairs import INTEGERS, RANKS, subjects, typings
from onnx import TensorProto, helper
from sampling import DAY

import taso_mirage
from taso_mirage.errors import IllTyped, Unsupported
from taso_mirage.ir.dims import symbol
from taso_mirage.ir.terms import Node, Tensor, variable
from taso_mirage.operators.ops import get
from taso_mirage.prove.rules.cases import Instance
from taso_mirage.prove.rules.onnx_types import admitted
from taso_mirage.prove.rules.proofs import Proofs
from taso_mirage.rewriting.library import Rule, parse_rules
from taso_mirage.rewriting.text import parse_type

RULES, TYPINGS, RUNS = 90, 3, 3
"""A day's slice: so many rules and laws, each at so many typings, on so many inputs."""
LEAST = 450


@pytest.mark.sampled(3)
def test_a_slice_of_the_rules_and_laws_gives_the_same_on_both_sides_in_the_runtime() -> None:
    seed, proofs = DAY, Proofs()
    found, verdicts = list[str](), Counter[str]()
    for name in Random(seed).sample(list(subjects()), RULES):
        tally = compared(subjects()[name], seed, TYPINGS, proofs, runs=RUNS)
        verdicts += tally.verdicts
        again = f"python bench/law_fuzz.py --only {name} --seed {seed} --typings {TYPINGS} --runs {RUNS} --count 1"
        found += [f"{w['name']}: {w['verdict']}: {w['found']}\n{w['left']}{w['right']}{again}" for w in tally.wrong[:1]]
    if found:
        pytest.fail("\n".join(found), pytrace=False)
    assert verdicts[EQUAL] >= LEAST, verdicts


def rule(lhs: str, rhs: str, given: str, attributes: str = "") -> Rule:
    fields = {"name": "tests.planted", "given": given, "lhs": lhs, "rhs": rhs} | (
        {"attributes": attributes} if attributes else {}
    )
    (made,) = parse_rules("[[rule]]\n" + "\n".join(f"{key} = {value!r}" for key, value in fields.items()))
    return made


PLANTED = {
    "a factor off by a thousandth": (
        rule("mul(reduce_sum(x, axes=(1,), keepdims=1), 2.0)", "reduce_sum(mul(x, 2.002), axes=(1,), keepdims=1)", "x: (n, m)"),
        DIFFERENT,
    ),
    "a sign": (rule("sub(x, y)", "add(x, y)", "x: (n, m), y: (n, m)"), DIFFERENT),
    "an axis": (rule("softmax(x, axis=0)", "softmax(x, axis=1)", "x: (n, m)"), DIFFERENT),
    "an index beyond": (
        rule("gather(x, i, axis=0)", "gather(x, add(i, 9), axis=0)", "x: (n, m), i: int64 (k)"),
        FAILS,
    ),
}  # fmt: skip


@pytest.mark.parametrize("fault", PLANTED)
def test_a_planted_fault_is_found(fault: str) -> None:
    made, verdict = PLANTED[fault]
    assert verdict in compared(made, 0, 6, trusted=True).verdicts


def test_a_false_rule_is_only_compared_where_it_is_proved() -> None:
    tally = compared(PLANTED["a sign"][0], 0, 6)  # of nothing sum and difference are equal
    assert tally.wrong == []
    assert tally.typings["unproved"] > tally.typings["run"]


def test_a_definition_that_is_not_the_runtimes_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    true = rule("neg(neg(x))", "x", "x: (n, m)")
    assert compared(true, 0, 4).verdicts.keys() <= {EQUAL, "not defined"}
    monkeypatch.setattr(get("neg"), "body", lambda xp, x: xp.mul(x, xp.literal(-2, x)))
    assert DEFINITION in compared(true, 0, 4, trusted=True).verdicts


def test_typings_are_of_every_dtype_and_rank() -> None:
    dtypes, ranks, dims = set[str](), set[int](), set[Any]()
    for name in ("add.3", "mul.3", "reduce_max.2", "transpose.0", "concat.0", "where.0"):
        for typing in typings(subjects()[name], 0, 150):
            operands = [v for v in typing.names.values() if isinstance(v, Node) and v.op != "absent"]
            dtypes |= {v.dtype for v in operands}
            ranks |= {len(v.shape) for v in operands}
            dims |= {d for v in operands for d in v.shape}
    assert dtypes >= {"float32", "float64", "float16", "bfloat16", "bool", *INTEGERS}
    assert ranks >= set(range(RANKS + 1))
    assert dims >= {0, 1, 2}


# ---------------------------------------------------------------- earlier finds


def operands(*types: str) -> list[Node]:
    return [variable(f"x{i}", parse_type(each)) for i, each in enumerate(types)]


HEADS = "float32[2,3,4]"
REFUSED: dict[str, tuple[str, list[Node], dict[str, Any]]] = {
    "keepdims of 2": ("reduce_sum", operands("float32[2,3]"), {"axes": (1,), "keepdims": 2}),
    "a place with keepdims of 2": ("argmax", operands("float32[2,3]"), {"axis": 1, "keepdims": 2}),
    "one query, causal": (
        "multi_head_attention",
        operands("float32[2,1,4]", HEADS, HEADS),
        {"num_heads": 2, "unidirectional": 1},
    ),
    "other heads of keys than of values": (
        "attention",
        operands("float32[2,4,3,8]", "float32[2,1,3,8]", "float32[2,4,3,8]"),
        {},
    ),
    "one batch of queries for two of keys": (
        "attention",
        operands("float32[1,2,3,4]", "float32[2,2,3,4]", "float32[2,2,3,4]"),
        {},
    ),
    "a mask for all queries alike": (
        "attention",
        operands("float32[2,2,3,4]", "float32[2,2,3,4]", "float32[2,2,3,4]", "float32[2,1,1,3]"),
        {},
    ),
    "zeros for more columns than there are": (
        "matmul_integer",
        operands("uint8[2,3]", "int8[3,1]", "uint8[()]", "int8[3]"),
        {},
    ),
    "batches of sums of nothing": ("fused_matmul", operands("float32[3,0,2]", "float32[3,0,4]"), {"transA": 1}),
    "a pool of no channels": ("global_average_pool", operands("float32[1,0,2,2]"), {}),
    "a gelu of rank 0": ("fast_gelu", operands("float32[()]"), {}),
    "a gelu of a sum of rank 0": ("bias_gelu", operands("float32[()]", "float32[()]"), {}),
    "integers padded by infinity": ("pad", operands("int8[3]"), {"pads": (1, 1), "value": -np.inf}),
    "a size that is not its scale's": (
        "resample",
        operands("float32[1,1,2,3]"),
        {"axes": (2, 3), "sizes": (2, 3), "scales": (2.0, 1.5)},
    ),
    "scales in a matrix": (
        "dynamic_quantize_matmul",
        operands("float32[3,2,3,1]", "int8[1]", "float32[3,3]", "int8[1]"),
        {},
    ),
}  # fmt: skip
"""Terms that the runtime computes otherwise than their definitions said, or refuses to run."""


@pytest.mark.parametrize("kind", REFUSED)
def test_what_the_runtime_does_not_compute_as_defined_has_no_type(kind: str) -> None:
    name, args, attrs = REFUSED[kind]
    with pytest.raises(IllTyped):
        get(name).term(*args, **attrs).type  # noqa: B018


@pytest.mark.parametrize(("name", "count", "shape"), [("fast_gelu", 1, (2, 3)), ("attention", 3, (1, 2, 3, 4))])
def test_float64_is_not_written_where_the_runtime_has_numbers_of_single_precision(
    name: str, count: int, shape: tuple[int, ...]
) -> None:
    node = get(name).term(*[variable(f"x{i}", Tensor("float64", shape)) for i in range(count)])
    assert not admitted(node)
    with pytest.raises(Unsupported, match="single precision"):
        get(name).to_onnx(node, 23)


def test_a_rule_does_not_apply_where_a_dim_that_may_be_empty_leaves_results_unset() -> None:
    """ONNX Runtime's FusedMatMul of a transposed batch of sums of nothing writes a part of them."""
    applied = {}
    for k in (symbol("k"), 5):
        a, b = variable("a", Tensor("float32", (3, k, 2))), variable("b", Tensor("float32", (3, k, 4)))
        left = get("matmul").term(get("transpose").term(a, perm=(0, 2, 1)), b)
        right = get("fused_matmul").term(a, b, transA=1)
        applied[str(k)] = bool(Proofs().judge(Instance((left,), (right,))))
    assert applied == {"k": False, "5": True}


def test_a_model_with_keepdims_of_2_gives_what_it_gave() -> None:
    """The runtime drops the axis, whatever the definition would say of it."""
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, [2, 3])
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, None)
    axes = onnx.numpy_helper.from_array(np.array([1]), "axes")
    nodes = [
        helper.make_node("ReduceSum", ["x", "axes"], ["s"], keepdims=2),
        helper.make_node("Shape", ["s"], ["n"]),
        helper.make_node("ConstantOfShape", ["n"], ["y"]),
    ]
    graph = helper.make_graph(nodes, "g", [x], [y], [axes])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    given = {"x": np.array([[1, 2, 3], [-4, 5, -6]], np.float32)}
    after = taso_mirage.optimize(model, measure=False)
    first, second = (
        onnxruntime.InferenceSession(m.SerializeToString(), providers=["CPUExecutionProvider"]).run(None, given)[0]
        for m in (model, after)
    )
    assert first.shape == second.shape
    assert (first == second).all()
