"""Certificates of models after generated ones whose certificate was refused."""

from __future__ import annotations

from pathlib import Path

import onnx.parser
import pytest
from certificate_cases import certified, followed

import taso_mirage
from taso_mirage.onnx_io.files import from_memory
from taso_mirage.report.result import Result

UNREAD = """<ir_version: 9, opset_import: ["": 17]>
g (float[1,3,8] x, float[4] first) => (float[4] last)
<float[8,4] w = {1.5, 2.0, 0.5, 1.0, 2.5, 0.1, 0.2, 0.3, 1.5, 2.0, 0.5, 1.0, 2.5, 0.1, 0.2, 0.3,
                 0.7, 2.0, 0.6, 1.0, 2.5, 0.1, 0.2, 0.3, 1.5, 2.9, 0.5, 1.0, 2.5, 0.8, 0.2, 0.4},
 float[8,4] v = {0.5, 2.0, 0.5, 1.0, 2.5, 0.6, 0.2, 0.3, 1.5, 1.0, 0.5, 1.0, 2.5, 0.1, 0.7, 0.3,
                 1.7, 2.0, 0.6, 1.0, 0.5, 0.1, 0.2, 0.3, 1.5, 2.9, 0.4, 1.0, 2.5, 0.8, 0.9, 0.4},
 float[4] b = {0.5, 0.25, 2.0, 1.5}, float[4] c = {1.5, 0.75, 2.5, 0.5}> {
  p = MatMul(x, w) seen = Add(p, b) q = MatMul(x, v) unseen = Add(q, c)
  last, rows = Scan<num_scan_inputs = 1, body = step (float[4] s, float[3,4] row) => (float[4] t, float[3,4] r) {
    m = ReduceMax<axes = [0, 1], keepdims = 0>(seen) a = Add(s, m) t = Tanh(a) r = Neg(row)
  }>(first, unseen)
}"""
UNNAMED = """<ir_version: 9, opset_import: ["": 17]>
g (float[3,4] x, bool[3] kept, bool c) => (float[N,4] y) {
  some = Compress<axis = 0>(x, kept) t = Tanh(some)
  i = If (c) <then_branch = a () => (float[N,4] p) { p = Exp(t) }, else_branch = b () => (float[N,4] q) { q = Sin(t) }>
  n = Neg(i) y = Neg(n)
}"""


NUMBERS = ", ".join(map(str, range(24)))
FOLDED = f"""<ir_version: 9, opset_import: ["": 17]>
g (float[24,24] x, bool[24,24] kept, float[24,24] table) => (float[24,24] y)
<int64[24,1] rows = {{{NUMBERS}}}, int64[24] columns = {{{NUMBERS}}}, int64[2] all = {{24, 24}}, int64[1] last = {{-1}},
 float low = {{-9.0}}> {{
  a = Expand(rows, all) b = Unsqueeze(a, last) c = Expand(columns, all) d = Unsqueeze(c, last) n = Neg(x) m = Neg(n)
  places = Concat<axis = -1>(b, d) masked = Where(kept, m, low) z = ScatterND(table, places, masked) y = Softmax(z)
}}"""
"""Too many indices for the reader to compute them from these."""


def verified(original: onnx.ModelProto, folder: Path) -> Result:
    _, result = taso_mirage.optimize(original, effort="quick", measure=False, return_result=True)
    assert followed(certified(from_memory(original), result, folder)).places > 0
    return result


def test_a_result_that_nobody_reads_may_take_part_in_a_rewrite(tmp_path: Path) -> None:
    """One product makes both operands of a loop, of which the model's output needs one."""
    result = verified(onnx.parser.parse_model(UNREAD), tmp_path)
    assert sum(each.op in ("gemm", "matmul") for each in result.model.nodes()) == 1


@pytest.mark.parametrize("name", ["", "?", "unnamed_1", "u0 + 2"])
def test_sizes_that_no_input_has_are_captured(name: str, tmp_path: Path) -> None:
    """A body's captured values have the sizes that a node without a definition gives, whether the
    file declares and names them or not."""
    original = onnx.parser.parse_model(UNNAMED)
    if name:
        dim = None if name == "?" else name
        original.graph.value_info.append(onnx.helper.make_tensor_value_info("some", onnx.TensorProto.FLOAT, [dim, 4]))
    assert verified(original, tmp_path).changed


def test_a_reader_knows_indices_that_were_computed_in_advance(tmp_path: Path) -> None:
    """All elements are updated; a mask of an exporter has such indices."""
    assert verified(onnx.parser.parse_model(FOLDED), tmp_path).changed
