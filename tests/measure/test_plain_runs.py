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
from taso_mirage.report.diff import _reorder

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


@pytest.mark.parametrize(
    ("new", "plain", "exact", "passed"),
    [
        ([1, 2], [1, 2], [1, 2], True),
        ([1, 3], [1, 3], [1, 3], True),  # as the original
        ([1, 2], [1, 2], [1, 3], False),  # the original is right
        ([1, 2], [1, 4], [1, 2], False),  # the original is wrong without optimizations, too
        ([1, 4], [1, 2], [1, 2], False),
    ],
)
def test_integers_are_those_of_the_original_or_of_float64(
    new: list[int], plain: list[int], exact: list[int], passed: bool
) -> None:
    made, known, right = (np.array(each) for each in (new, plain, exact))
    there = replace(case(known), original=[np.array([1, 3])], reference=[right])
    (found,) = compare(RELU, Known(made), [there])
    assert found.passed == passed


def test_without_plain_outputs_the_original_alone_counts() -> None:
    (found,) = compare(RELU, Known(RIGHT), [replace(case(RIGHT), plain=None)])
    assert not found.passed


def test_plain_outputs_are_reordered_with_the_others() -> None:
    both = CheckCase("c", {}, [WRONG, EXACT], [EXACT, EXACT], lambda ways: [0.0, 0.0], plain=lambda: [RIGHT, EXACT])
    swapped = _reorder(both, [1, 0])
    assert swapped.plain is not None
    assert swapped.plain()[1] is RIGHT  # type: ignore[index]
    assert _reorder(replace(both, plain=lambda: None), [1, 0]).plain() is None  # type: ignore[misc]


def test_the_plain_run_is_made_only_when_it_is_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    (first, *_) = check_cases(RELU, open_in_child(RELU, CPU, source=True), {}, most=1)
    monkeypatch.setattr(plain_runs, "open_in_child", lambda *given, **options: Known(RIGHT))
    assert first.plain is not None
    assert first.plain() == [RIGHT]
    (lowest, *_) = check_cases(RELU, open_in_child(RELU, UNOPTIMIZED, source=True), {}, most=1)
    assert lowest.plain is None
