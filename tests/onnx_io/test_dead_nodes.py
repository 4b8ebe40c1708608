"""Nodes that no output of a model needs, and results that nothing reads."""

from __future__ import annotations

import numpy as np
import onnx
from onnx_texts import parse, read, run

from taso_mirage.onnx_io import serialize


def test_results_between_others_that_nothing_reads() -> None:
    """A term that has fewer results than its node has names."""
    proto = onnx.parser.parse_model("""
        <ir_version: 8, opset_import: ["" : 17, "com.microsoft" : 1]>
        g (float[1, 2, 4] x, float[4] s) => (float[1, 2, 4] y) {
            n, mean, variance, sum = com.microsoft.SkipLayerNormalization (x, x, s)  y = Sub (sum, n)
        }
    """)
    model = read(proto)
    assert "opaque" not in {n.op for n in model.nodes()}
    after = onnx.load_from_string(serialize(model))
    feeds = {"x": np.arange(8, dtype=np.float32).reshape(1, 2, 4) ** 2, "s": np.float32([1, 2, 3, 4])}
    np.testing.assert_array_equal(run(proto, **feeds)[0], run(after, **feeds)[0])


def test_results_that_only_such_nodes_read_do_not_count() -> None:
    """The mean of a norm, which a body of a dead If reads."""
    model = read(
        parse("""
        g (bool c, float[2, 4] x, float[4] s) => (float[2, 4] y) {
            y, m = LayerNormalization (x, s) \n a = Exp (m)
            b = If (c) <then_branch = t () => (float[2, 4] p) { p = Add (x, a) },
                else_branch = f () => (float[2, 4] q) { q = Sub (x, m) }>
        }
        """)
    )
    assert {n.op for n in model.nodes()} == {"input", "layer_norm"}


def test_a_branch_that_is_not_taken_reads_nothing() -> None:
    """The ranks of the results choose the branch; the other one reads the mean."""
    model = read(
        parse("""
        g (float[2, 3, 1, 4] x, float[4] s, float[5, 3, 1] w, bool c) => (float[2, 5, 4] y) {
            n, m = LayerNormalization (x, s) \n two = Constant<value = int64[1] {2}> ()
            a = If (c) <then_branch = t () => (float[2, 3, 4] p) { p = Squeeze (n, two) },
                else_branch = f () => (float[2, 3, 1, 1] q) { q = Exp (m) }>
            y = Conv (a, w)
        }
        """)
    )
    assert "opaque" not in {n.op for n in model.nodes()}


def test_a_body_captures_what_its_dead_nodes_read() -> None:
    model = read(
        parse("""
        g (bool c, float[4] x) => (float[4] y) {
            a = Exp (x)
            y = If (c) <then_branch = t () => (float[4] p) { b = Neg (a) \n p = Relu (x) },
                else_branch = f () => (float[4] q) { q = Abs (x) }>
        }
        """)
    )
    assert {n.op for n in model.nodes()} == {"input", "exp", "opaque"}
