"""PyTorch's module of attention as its exporter writes it: one product for queries, keys and
values, which are parted by a move of all of it, and heads that share a dim with the batch."""

from __future__ import annotations

import textwrap
from collections import Counter

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import numpy_helper

import taso_mirage

HEADER = '<ir_version: 8, opset_import: ["" : 17]>'
BATCH_FIRST = "t = Transpose <perm = [1, 0, 2]> (x)", "y = Transpose <perm = [1, 0, 2]> (u)", "batch, seq"
SEQUENCE_FIRST = "t = Identity (x)", "y = Identity (u)", "seq, batch"


def module(before: str, after: str, dims: str) -> onnx.ModelProto:
    """Two heads of 3; `t` and `u` are (seq, batch, 6)."""
    head = """
        {0} = Gather <axis = 0> (parts, {1})
        {0}1 = Reshape ({0}, joint)
        {0}2 = Transpose <perm = [{2}]> ({0}1)
        {0}3 = Reshape ({0}2, {3})"""
    heads = "".join(
        head.format(name, f"at{i}", perm, to)
        for i, (name, perm, to) in enumerate(
            (("q", "1, 0, 2", "rows"), ("k", "1, 2, 0", "columns"), ("v", "1, 0, 2", "rows"))
        )
    )
    lists = {"packed": [0, 0, 3, 6], "heads": [2], "of": [3], "wide": [6], "front": [0], "third": [3]}
    proto = onnx.parser.parse_model(
        HEADER
        + textwrap.dedent(f"""
        attention (float[{dims}, 6] x) => (float[{dims}, 6] y) <int64 at0 = {{0}}, int64 at1 = {{1}}, int64 at2 = {{2}}> {{
        {before}
        s = Shape <start = 0, end = 1> (t)
        b = Shape <start = 1, end = 2> (t)
        n = Mul (b, heads)
        joint = Concat <axis = 0> (s, n, of)
        rows = Concat <axis = 0> (b, heads, s, of)
        columns = Concat <axis = 0> (b, heads, of, s)
        whole = Concat <axis = 0> (s, b, wide)
        m = MatMul (t, w)
        p = Add (m, bias)
        r = Reshape (p, packed)
        one = Unsqueeze (r, front)
        moved = Transpose <perm = [3, 1, 2, 0, 4]> (one)
        parts = Squeeze (moved, third)
        {heads}
        scores = MatMul (q3, k3)
        weights = Softmax <axis = -1> (scores)
        o = MatMul (weights, v3)
        o1 = Transpose <perm = [2, 0, 1, 3]> (o)
        o2 = Reshape (o1, whole)
        u = MatMul (o2, out)
        {after}
        }}""")
    )
    rng = np.random.default_rng(0)
    arrays = {k: rng.normal(size=s).astype(np.float32) for k, s in {"w": (6, 18), "bias": (18,), "out": (6, 6)}.items()}
    arrays |= {k: np.array(v) for k, v in lists.items()}
    proto.graph.initializer.extend(numpy_helper.from_array(a, n) for n, a in arrays.items())
    return proto


@pytest.mark.parametrize("form", [BATCH_FIRST, SEQUENCE_FIRST], ids=["batch first", "sequence first"])
def test_nothing_moves_through_one_dim(form: tuple[str, str, str]) -> None:
    proto = module(*form)
    onnx.checker.check_model(proto, full_check=True)
    made = taso_mirage.optimize(proto, measure=False, budget=10)
    ops = Counter(node.op_type for node in made.graph.node)
    assert not {"Squeeze", "Unsqueeze", "Gather"} & {*ops}
    assert ops["Transpose"] <= 4  # queries, keys, values and the result
    for shape in ((2, 5, 6), (1, 1, 6), (4, 3, 6)):
        given = {"x": np.random.default_rng(1).normal(size=shape).astype(np.float32)}
        before, after = (onnxruntime.InferenceSession(m.SerializeToString()).run(None, given)[0] for m in (proto, made))
        np.testing.assert_allclose(before, after, rtol=1e-5, atol=1e-5)
