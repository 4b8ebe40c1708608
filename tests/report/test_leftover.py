"""The line on regions that were not tried, from facts that the search of kernels knows."""

from __future__ import annotations

from dataclasses import replace
from html import unescape
from pathlib import Path

import pytest
from fused_models import CONFIG, fresh_cache, plain, quick

from taso_mirage.measure.child import child
from taso_mirage.pipeline.fuse import fused, order
from taso_mirage.report import html, summary
from taso_mirage.report.data import result_data
from taso_mirage.report.leftover import Leftover, LeftRegion, leftover, region_name
from taso_mirage.report.result import Result

ATTENTION, NORM, ADD = ("matmul", "softmax", "matmul"), ("layer_norm",), ("add", "relu")


def test_the_line() -> None:
    found = leftover([(ATTENTION, 12, 0.002), (NORM, 24, 0.001), (ADD, 1, 0.0005)], [0, 2], 0.007, 20.0)
    assert found is not None
    assert str(found) == (
        '1 of 3 kinds of regions tried; effort="thorough" or 40 s more would try: '
        "attention (12 places, up to 1.40 times), add relu (1 place, up to 1.08 times)"
    )


def test_a_model_without_predicted_seconds_has_a_line_too() -> None:
    found = leftover([(("scan",), 1, 0.002)], [0], 0.0, 0.0)
    assert found is not None
    assert "scan (1 place, up to 4.00 times)" in str(found)


@pytest.mark.parametrize(
    ("operators", "name"),
    [
        ("mul add matmul softmax matmul transpose", "attention"),
        ("layer_norm matmul matmul", "norm and 2 products"),
        ("pow reduce_mean sqrt matmul sigmoid mul matmul", "norm and 2 products"),
        ("layer_norm matmul matmul softmax matmul", "attention, norm and product"),
        ("packed_attention", "attention"),
        ("conv relu", "convolution"),
        ("softmax add", "softmax add"),
    ],
)
def test_regions_have_the_names_of_the_field(operators: str, name: str) -> None:
    assert region_name(operators.split()) == name


def test_nothing_is_said_where_all_were_tried() -> None:
    assert leftover([(NORM, 1, 1.0)], [], 1.0, 5.0) is None


def test_small_gains_are_not_named_and_long_lists_are_cut() -> None:
    found = leftover([(ADD, 1, 1e-6), (NORM, 1, 2e-6)], [0, 1], 1.0, 0.0)
    assert str(found) == "0 of 2 kinds of regions tried; by estimate the others gain less than 1%"
    many = leftover([(("op",) * 9, 2, 0.1 - i / 1000) for i in range(6)], range(6), 1.0, 0.0)
    assert str(many).endswith("op op op op op ... (2 places, up to 1.11 times), and 3 more")
    assert many is not None
    assert [round(each.gain, 4) for each in many.regions] == sorted(
        (round(each.gain, 4) for each in many.regions), reverse=True
    )


def test_estimates_that_sum_to_more_than_a_run_promise_less() -> None:
    """Together the regions may not save more than there is."""
    found = leftover([(ATTENTION, 1, 3.0), (NORM, 1, 1.0)], [0, 1], 1.0, 0.0)
    assert found is not None
    first, second = (1 - 1 / each.gain for each in found.regions)
    assert first + second == pytest.approx(0.75)
    assert first == pytest.approx(3 * second)


@pytest.fixture
def before(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Result:
    fresh_cache(monkeypatch, tmp_path)
    quick(monkeypatch)
    child().stop()
    return plain()


def test_a_search_that_has_no_time_for_all_says_what_is_left(
    before: Result, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    looks = iter([False, False, False])
    monkeypatch.setattr(order.StageTime, "late", lambda self: next(looks, True))
    found = fused(before, CONFIG, "search").left
    assert found is not None
    assert found.tuned == 1
    assert found.kinds == 2
    (region,) = found.regions
    assert region.places == 1
    assert region.gain > 1


def test_all_tried_leaves_nothing(before: Result) -> None:
    assert fused(before, CONFIG, "search").left is None


def test_it_is_in_the_text_the_data_and_the_report(before: Result, capsys: pytest.CaptureFixture[str]) -> None:
    left = Leftover(2, 9, 40.0, (LeftRegion(ATTENTION, 12, 1.4),))
    result = replace(before, left=left)
    summary.show(result, Path("m.onnx"), [])
    assert 'left: 2 of 9 kinds of regions tried; effort="thorough" or 40 s more' in " ".join(
        capsys.readouterr().out.split()
    )
    told = result_data(result, Path("m.onnx"), [])["left"]
    assert told == {
        "said": str(left),
        "tuned": 2,
        "kinds": 9,
        "seconds": 40.0,
        "regions": [{"operators": [*ATTENTION], "places": 12, "gain": 1.4}],
    }
    assert f"Left: {left}" in unescape(html.page(result, [], Path("m.onnx"), [], ["taso-mirage"], {}))
    assert result_data(before, Path("m.onnx"), [])["left"] is None


def test_an_original_without_a_predicted_cost_has_no_row_of_it(
    before: Result, capsys: pytest.CaptureFixture[str]
) -> None:
    for cost, shown in ((before.cost_before, True), (0.0, False)):
        summary.show(replace(before, cost_before=cost), Path("m.onnx"), [])
        assert ("predicted cost" in capsys.readouterr().out) == shown
