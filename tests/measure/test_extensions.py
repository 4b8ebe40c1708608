"""Models with inputs and outputs of dtypes that numpy does not have."""

from __future__ import annotations

import numpy as np
import onnx.parser
import pytest

import taso_mirage
from taso_mirage.ir.model import random_inputs
from taso_mirage.ir.terms import integer_limits, numpy_dtype
from taso_mirage.onnx_io.files import from_memory
from taso_mirage.targets.cpu.session import CpuSession
from taso_mirage.targets.onnx_runtime import EXTENSIONS, PAIRS

WITH = """<ir_version: 10, opset_import: ["": 21]>
g (string[N, 2] x, {0}[N, 2] z) => (string[N, 2] y, {0}[N, 2] w) {{
  y = Identity(x)  one = Transpose<perm = [1, 0]>(z)  w = Transpose<perm = [1, 0]>(one)
}}"""


@pytest.mark.parametrize("dtype", EXTENSIONS)
def test_texts_beside_numbers_that_numpy_does_not_have(dtype: str) -> None:
    """The runtime takes such numbers as values of its own alone, and makes none of texts."""
    original = onnx.parser.parse_model(WITH.format(dtype.replace("_", "")))
    result, said = taso_mirage.optimize(original, effort="quick", return_result=True)
    assert "Transpose" not in [each.op_type for each in result.graph.node]
    assert said.differences
    assert all(each.passed for each in said.differences)


IDENTITY = """<ir_version: 10, opset_import: ["": 21]>
g ({0}[2, N] x) => ({0}[2, N] y) {{ y = Identity(x) }}"""
PAIR = """<ir_version: 10, opset_import: ["": 21]>
g ({0}[2, N] x) => ({0}[2, N] y) <float one = {{1.0}}> {{
  float = DequantizeLinear(x, one)  b = Neg(float)  c = Neg(b)  y = QuantizeLinear<output_dtype = {1}>(c, one)
}}"""


def model(dtype: str) -> onnx.ModelProto:
    text = PAIR.format(dtype, PAIRS[dtype]) if dtype in PAIRS else IDENTITY.format(dtype.replace("_", ""))
    return onnx.parser.parse_model(text)


@pytest.mark.parametrize("dtype", [*EXTENSIONS, *PAIRS])
@pytest.mark.parametrize("count", [0, 3, 8])
def test_all_values_pass_through_the_runtime(dtype: str, count: int) -> None:
    """All integers of 4 bits do, two of which are in a byte, and some floats."""
    least = -8 * (dtype != "uint4")
    given = np.arange(least, least + 2 * count).reshape(2, count).astype(numpy_dtype(dtype))
    (found,) = CpuSession(model(dtype).SerializeToString(), False, {}).run({"x": given})
    assert found.dtype == given.dtype
    assert found.astype(float).tolist() == given.astype(float).tolist()


@pytest.mark.parametrize("dtype", PAIRS)
def test_a_model_of_integers_of_4_bits_is_optimized_and_checked(dtype: str) -> None:
    result, said = taso_mirage.optimize(model(dtype), effort="quick", return_result=True)
    assert "Neg" not in [each.op_type for each in result.graph.node]
    assert said.differences
    assert all(each.passed for each in said.differences)


@pytest.mark.parametrize("dtype", PAIRS)
def test_integers_of_4_bits_are_drawn_from_all(dtype: str) -> None:
    drawn = random_inputs(from_memory(model(dtype)), 0, {"N": 400})["x"].astype(int)
    assert (drawn.min(), drawn.max()) == integer_limits(dtype)
