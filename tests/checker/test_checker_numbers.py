"""The checker's reading of an operator agrees with ONNX Runtime, at the operators' own uses and at
random typings of the rules."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from random import Random
from typing import Any

import numpy as np
import pytest
from checker_numbers import computed
from onnxruntime import InferenceSession
from operator_uses import ON_A_GPU, build, opsets

from taso_mirage.checker.operators import OPS
from taso_mirage.errors import TasoMirageError, Unsupported
from taso_mirage.ir.terms import LEAVES, Graph, Node, is_float, numpy_dtype, topological, variable
from taso_mirage.onnx_io import serialize
from taso_mirage.onnx_io.build import standalone
from taso_mirage.operators.ops import load_specs
from taso_mirage.prove.rules.hostile import RuleStatement, drawn
from taso_mirage.prove.rules.recheck import law_rules
from taso_mirage.rewriting import library
from taso_mirage.rewriting.text import show_graph

ELEMENTS = 600
"""Larger results take long, element by element."""
CLOSE = {"float64": 1e-5, "float32": 2e-4, "float16": 1e-2, "bfloat16": 5e-2}
OTHER_STEPS = ("quantize", "qlinear")
"""Rounding that a float of few digits may have the other way: one step apart is equal."""
FEW_BITS = ("float8", "float4", "int4", "uint4", "int2", "uint2")
REFUSED = {("sign", 1), ("average_pool", 3), ("lp_pool", 2), ("pad", 5), ("pad", 7)}
"""Uses that the checker does not read: of integers, beyond the padding, another norm, other
borders."""
NOT_HERE = {
    "attention_traced": "the runtime gives the scores of another mode",
}


def run_of(graph: Graph, values: dict[Node, Any], versions: dict[str, int]) -> list[Any]:
    """The outputs of ONNX Runtime without rewriting the graph."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.log_severity_level, options.intra_op_num_threads = 4, 1
    session = InferenceSession(serialize(standalone(graph, versions)), options, providers=["CPUExecutionProvider"])
    feeds = {n.attr("name"): np.asarray(v) for n, v in values.items()}
    return list(session.run(None, feeds))


def same(graph: Graph, values: dict[Node, Any], versions: dict[str, int]) -> None:
    wanted = run_of(graph, values, versions)
    if sum(np.asarray(w).size for w in wanted) > ELEMENTS:
        pytest.skip("large")
    text = show_graph(Graph((), graph.outputs), "f")
    found = computed(text, {n.attr("name"): np.asarray(v) for n, v in values.items()})
    ops = {n.op for n in topological(graph.outputs)}
    for a, b, node in zip(found, wanted, graph.outputs, strict=True):
        assert a.shape == np.shape(b)
        if is_float(node.dtype):
            near = CLOSE[node.dtype]
            finite = np.isfinite(np.asarray(b, np.float64)) & np.isfinite(a)  # nothing is claimed of others
            np.testing.assert_allclose(a[finite], np.asarray(b, np.float64)[finite], near, near, err_msg=text)
        else:
            gap = np.abs(np.asarray(a, np.float64) - np.asarray(b, np.float64))
            assert gap.max(initial=0) <= any(name.startswith(OTHER_STEPS) for name in ops), text


def uses() -> list[Any]:
    known = [op for name, op in load_specs().items() if name in OPS and op.onnx and name not in (*ON_A_GPU, *NOT_HERE)]
    return [pytest.param(op, i, id=f"{op.name}-{i}") for op in known for i in range(len(op.examples))]


@pytest.mark.sampled(3)
@pytest.mark.parametrize(("op", "i"), uses())
def test_an_operator_is_read_as_the_runtime_computes_it(op: Any, i: int) -> None:
    use = build(op, i)
    if any(not isinstance(n.type, tuple) and n.dtype.startswith(FEW_BITS) for n in topological(use.outputs)):
        pytest.skip("a type that the checker does not read")
    if (op.name, i) not in REFUSED:
        same(use.graph, use.values, opsets(use))
        return
    with pytest.raises(Unsupported):
        same(use.graph, use.values, opsets(use))


def test_all_operators_of_onnx_are_read_but_these() -> None:
    unknown = {name for name, op in load_specs().items() if op.onnx and name not in OPS}
    assert unknown == UNKNOWN


UNKNOWN = {
    *("reduce_prod", "resample", "scaler"),
    *("matmul_nbits", "gather_block_quantized", "qattention", "qgemm"),
    *("qlinear_softmax", "qlinear_where"),
    *("scan", "lstm", "gru", "rnn", "linear_attention"),  # a certificate opens loops: the checker gets their steps
    *("scatter_nd", "scatter_elements", "scatter", "tensor_scatter"),
}
"""Operators that the checker does not know: their equalities rest on the prover."""


# ---------------------------------------------------------------- random typings


def graphs(wanted: int, seed: int) -> Iterator[Graph]:
    """The sides of rules and laws at random typings."""
    rules = [*library.load_rules(), *law_rules()]
    Random(seed).shuffle(rules)
    for rule in rules:
        try:
            for typing in islice(
                drawn(RuleStatement(rule.equation, rule.given, rule.attributes), seed, wanted), wanted
            ):
                for side in (typing.lhs, typing.rhs):
                    yield Graph(tuple(n for n in topological(side) if n.op in LEAVES and n.op != "absent"), side)
        except (TasoMirageError, ArithmeticError, LookupError, TypeError, ValueError):
            continue


def filled(graph: Graph, rng: np.random.Generator) -> tuple[Graph, dict[Node, Any]]:
    """The graph over inputs alone, and numbers for them: positions of 0 and 1, scales above 0."""
    scales = {a for n in topological(graph.outputs) for a in n.args[1:] if "quant" in n.op or "qlinear" in n.op}
    values = {}
    for n in graph.inputs:
        shape, dtype = [int(d) for d in n.shape], numpy_dtype(n.dtype)
        if dtype.kind == "b":
            value = rng.random(shape) < 0.5
        elif dtype.kind in "iu":
            value = rng.integers(0, 2, shape).astype(dtype)
        else:
            drawn_ = rng.normal(size=shape)
            value = (np.abs(drawn_) + 0.1 if n in scales else drawn_).astype(dtype)
        values[variable(n.attr("name"), n.type)] = np.asarray(value)
    return Graph(tuple(values), graph.outputs), values


def compare(count: int, seed: int, wanted: int) -> dict[str, int]:
    """How many graphs were equal, and how often each reason kept one out."""
    rng, found = np.random.default_rng(seed), dict[str, int](equal=0)
    for graph in graphs(wanted, seed):
        if any(n.op == "weight" for n in graph.inputs) or any(0 in n.shape for n in graph.inputs):
            continue
        whole, values = filled(graph, rng)
        try:
            with np.errstate(all="ignore"):
                same(whole, values, {"": 23, "com.microsoft": 1})
            found["equal"] += 1
        except AssertionError:
            raise
        except pytest.skip.Exception:
            continue
        except Exception as error:  # the runtime does not have it, or the checker does not read it
            reason = " ".join(str(error).split())[:70]
            found[reason] = found.get(reason, 0) + 1
        if found["equal"] >= count:
            break
    return found


def test_random_typings() -> None:
    assert compare(100, 0, 1)["equal"] >= 100


@pytest.mark.slow
def test_many_random_typings() -> None:
    assert compare(4000, 1, 6)["equal"] >= 3000
