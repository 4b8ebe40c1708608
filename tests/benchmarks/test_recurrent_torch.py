"""PyTorch runs each loop of the benchmark of recurrences, with its weights in the file."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import onnxruntime
import pytest

sys.path.insert(0, str(Path(__file__).parent.parent.parent / "bench"))

pytest.importorskip("torch")

from recurrent_models import MODELS, inputs, with_weights
from recurrent_torch import Runs


@pytest.mark.parametrize("name", [name for name in MODELS if "experts" not in name])
def test_the_loop_of_pytorch_computes_the_model(name: str) -> None:
    model = with_weights(name, 2)
    feed = inputs(model)
    wanted = onnxruntime.InferenceSession(model.SerializeToString()).run(None, feed)
    for made, right in zip(Runs(model, feed, False).run(None, feed), wanted, strict=True):
        np.testing.assert_allclose(made, right, 1e-3, 1e-4)
