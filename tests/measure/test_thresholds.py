"""Floats that the runtime takes between 0 and 1 alone, as the thresholds of a detector, are drawn
so."""

from __future__ import annotations

import numpy as np
import pytest
from onnx import parser

from taso_mirage.ir.model import random_inputs
from taso_mirage.onnx_io import from_ir, from_proto
from taso_mirage.pipeline import optimize_model
from taso_mirage.search.config import Config

DETECTOR = """
<ir_version: 8, opset_import: ["" : 17]>
agraph (float[1,n,4] boxes, float[1,2,n] scores, {inputs}) => (int64[k,3] found) {{
  most = Constant <value = int64[1] {{5}}> ()
  {thresholds}
  found = NonMaxSuppression (boxes, scores, most, iou, least)
}}
"""
FORMS = {
    "two inputs": DETECTOR.format(inputs="float[1] iou, float[1] least", thresholds=""),
    "numbers without a dim": DETECTOR.format(
        inputs="float a, float b",
        thresholds="""
  zero = Constant <value = int64[1] {0}> ()
  one = Constant <value = int64[1] {1}> ()
  iou = Reshape (a, one)
  least = Unsqueeze (b, zero)
  """,
    ),
    "one input": DETECTOR.format(
        inputs="float[3] settings",
        thresholds="iou, least, rest = Split <axis = 0> (settings)",
    ),
    "in a body": """
<ir_version: 8, opset_import: ["" : 17]>
agraph (float[1,n,4] boxes, float[1,2,n] scores, bool which, float[1] iou) => (int64[k,3] found) {
  most = Constant <value = int64[1] {5}> ()
  found = If (which) <
    then_branch = some () => (int64[i,3] a) { a = NonMaxSuppression (boxes, scores, most, iou) },
    else_branch = none () => (int64[j,3] b) { b = NonMaxSuppression (boxes, scores, most, iou, iou) }>
}
""",
}


@pytest.mark.parametrize("name", FORMS)
def test_thresholds_are_between_0_and_1(name: str) -> None:
    model = from_ir(from_proto(parser.parse_model(FORMS[name])))
    drawn = [random_inputs(model, seed) for seed in range(8)]
    for given in model.input_names:
        values = np.concatenate([np.ravel(each[given]) for each in drawn]).astype(float)
        assert (values.min() >= 0 and values.max() <= 1) == (given not in ("boxes", "scores")), given
    optimize_model(model, Config(budget=1.0, measure=False, kernels="off"))  # refused at others


def test_other_floats_are_of_both_signs() -> None:
    """The signs matter also for inputs from which a threshold is computed."""
    text = DETECTOR.format(inputs="float[1] a", thresholds="iou = Sigmoid (a) least = Neg (a)")
    model = from_ir(from_proto(parser.parse_model(text)))
    assert min(float(random_inputs(model, seed)["a"][0]) for seed in range(8)) < 0
