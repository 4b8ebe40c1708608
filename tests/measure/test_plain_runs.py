"""The check where ONNX Runtime's own optimizations are wrong on the original: a model is right as
well if it is as near to float64 as the original without them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from small_models import model, x

from taso_mirage.measure import plain_runs
from taso_mirage.measure.check import CheckCase, check_cases, compare
from taso_mirage.measure.session import open_in_child
from taso_mirage.measure.target import CPU, UNOPTIMIZED
from taso_mirage.operators.ops import term

EXACT = np.array([0.5, -1.0, 2.0])
WRONG, RIGHT = (EXACT + 0.25).astype(np.float32), EXACT.astype(np.float32)
RELU = model((x(3),), (term("relu", x(3)),))


class Known:
    def __init__(self, output: np.ndarray) -> None:
        self.output = output

    def run(self, inputs: Any) -> list[Any]:
        return [self.output]


def case(plain: np.ndarray | None) -> CheckCase:
    known = None if plain is None else [plain]
    return CheckCase("c", {}, [WRONG], [EXACT], lambda ways: [0.0], lambda: [0.0], plain=lambda: known)


@pytest.mark.parametrize(
    ("new", "plain", "passed"),
    [
        (RIGHT, RIGHT, True),
        (WRONG, RIGHT, True),  # as the original, whatever it is
        (RIGHT, None, False),
        (RIGHT, WRONG, False),  # float64 explains neither run
        ((EXACT + 0.1).astype(np.float32), RIGHT, False),
        (RIGHT * np.float32(1.001), RIGHT, False),
        (RIGHT.astype(np.float64), RIGHT, False),
    ],
)
def test_either_the_original_or_float64(new: np.ndarray, plain: np.ndarray | None, passed: bool) -> None:
    (found,) = compare(RELU, Known(new), [case(plain)])
    assert found.passed == passed


def test_without_plain_outputs_the_original_alone_counts() -> None:
    (found,) = compare(RELU, Known(RIGHT), [replace(case(RIGHT), plain=None)])
    assert not found.passed


def test_the_plain_run_is_made_only_when_it_is_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    (first, *_) = check_cases(RELU, open_in_child(RELU, CPU, source=True), {}, most=1)
    monkeypatch.setattr(plain_runs, "open_in_child", lambda *given, **options: Known(RIGHT))
    assert first.plain is not None
    assert first.plain() == [RIGHT]
    (lowest, *_) = check_cases(RELU, open_in_child(RELU, UNOPTIMIZED, source=True), {}, most=1)
    assert lowest.plain is None
