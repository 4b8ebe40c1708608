"""The comparison of a certificate's two models in the runtime ends in time, and says what it left
out."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, cast

import numpy as np
import pytest
from onnx.parser import parse_model

from taso_mirage.errors import CheckFailed, RunFailed
from taso_mirage.ir.model import Model
from taso_mirage.measure import check, evaluation
from taso_mirage.measure.check import CheckCase
from taso_mirage.measure.check_inputs import CheckInput
from taso_mirage.measure.evaluation import Evaluation, Evaluations, Left, references
from taso_mirage.measure.native import Arrays
from taso_mirage.measure.sizes import SEEDS
from taso_mirage.onnx_io.files import from_memory
from taso_mirage.report.run_alike import SECONDS, run_alike

LATE = "there was no time for their float64 references"
TEXT = '<ir_version: 9, opset_import: ["" : 17]> g (float[N,4] x) => (float[N,4] y) { %s }'


def model(body: str = "y = Relu(x)") -> Model:
    return from_memory(parse_model(TEXT % body))


def test_no_time_for_any_reference() -> None:
    said = "not compared in the runtime: a float64 reference takes too long; a larger budget allows it"
    assert run_alike(model(), model(), 0) == said


def test_plain_random_numbers_are_needed(monkeypatch: pytest.MonkeyPatch) -> None:
    needed: list[Any] = []

    class Recorded(Evaluations):
        def __call__(self, wanted: Sequence[Evaluation]) -> list[Any]:
            needed.extend(cast(Any, each.compute).args[0]["x"] for each in wanted if not each.after)
            return super().__call__(wanted)

    monkeypatch.setattr(evaluation, "Evaluations", Recorded)
    run_alike(model(), model(), math.inf)
    assert len(needed) == len(SEEDS)
    plain = [bool((x != np.round(x)).any()) and float(np.median(np.abs(x))) < 3 for x in needed]
    assert plain.count(True) == 1


def test_inputs_without_time_are_left_out_and_named(monkeypatch: pytest.MonkeyPatch) -> None:
    limits = []

    def late(model: Model, taken: Sequence[CheckInput], seconds: float) -> list[Any]:
        limits.append(seconds)
        return [*references(model, taken, math.inf)[:-1], Left()]

    monkeypatch.setattr(check, "references", late)
    said = run_alike(model(), model())
    assert said.startswith("both models run alike on ")
    assert LATE in said
    assert limits == [SECONDS]
    with pytest.raises(CheckFailed):
        run_alike(model(), model("y = Abs(x)"))


class _Full:
    """A session whose runtime has no memory left."""

    def run(self, inputs: Arrays) -> list[Any]:
        raise RunFailed("ONNX Runtime needs more memory than there is")


def test_the_reason_why_a_model_does_not_run_is_said() -> None:
    found = check.compare(model(), _Full(), [CheckCase("inputs", {}, [], [], lambda _: [], list)])
    assert [str(each) for each in found] == [
        "output 'y' on inputs, where it does not run (ONNX Runtime needs more memory than there is): "
        "error inf against float64, above the bound 0 (the original's own error is 0)"
    ]


def test_all_inputs_in_time() -> None:
    assert LATE not in run_alike(model(), model(), math.inf)
