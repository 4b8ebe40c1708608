"""Sets of sizes with weights: the option `--shape`, the cost and the choice by the weighted sum,
the check and the report of each."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from executors import Elsewhere
from small_models import model, w, x

from taso_mirage.errors import InvalidOption
from taso_mirage.ir.dims import symbol
from taso_mirage.ir.model import Model
from taso_mirage.measure import session as runtime
from taso_mirage.measure.cost_cache import CostCache
from taso_mirage.measure.shapes import parse_shape, parse_shapes, workloads
from taso_mirage.measure.target import CUDA
from taso_mirage.onnx_io import serialize
from taso_mirage.operators.ops import term
from taso_mirage.pipeline import optimize_model
from taso_mirage.report import html, summary
from taso_mirage.report.data import result_data
from taso_mirage.report.result import Result
from taso_mirage.search.config import Config
from taso_mirage.search.cost import Cost, Roofline, Weighted
from taso_mirage.search.passes import Context

N, M = symbol("n"), symbol("m")
SMALL, LARGE = {"n": 1}, {"n": 256}
CONTEXT = Context({"": 20, "com.microsoft": 1}, SMALL)


def two_inputs(*names: str) -> Model:
    """Inputs of (n, m) and (n, 8)."""
    a, b = x(N, M, name=names[0]), x(N, 8, name=names[1])
    return model((a, b), (term("tanh", a), term("tanh", b)))


def twice() -> Model:
    a = x(N, 8)
    return model((a,), (term("relu", term("relu", a)),))


def low_rank() -> Model:
    """Two thin products: one product with both weights multiplied ahead launches less, and computes
    more for every row."""
    a = x(N, 64)
    return model((a,), (term("matmul", term("matmul", a, w(64, 8, name="u")), w(8, 64, name="v")),))


# ---------------------------------------------------------------- the option


@pytest.mark.parametrize(
    ("texts", "expected"),
    [
        ([], [({}, 1.0)]),
        (["n:4"], [({"n": 4}, 1.0)]),
        (["x:4,128", "n:4"], [({"n": 4, "m": 128}, 1.0)]),
        (["x:4x128"], [({"n": 4, "m": 128}, 1.0)]),
        (["n:4+m:128"], [({"n": 4, "m": 128}, 1.0)]),
        (["n:4@2"], [({"n": 4}, 2.0)]),
        (["n:1+m:512@3", "n:8+m:128@0.5"], [({"n": 1, "m": 512}, 3.0), ({"n": 8, "m": 128}, 0.5)]),
        (["n:1@3", "m:16", "y:8,8@1"], [({"n": 1, "m": 16}, 3.0), ({"n": 8, "m": 16}, 1.0)]),
    ],
)
def test_what_a_shape_says(texts: list[str], expected: list[tuple[dict[str, int], float]]) -> None:
    assert parse_shapes(two_inputs("x", "y"), texts) == expected


def test_names_may_have_the_signs_of_the_option() -> None:
    odd = two_inputs("a+b:c@2", "n:1+y")
    assert parse_shapes(odd, ["a+b:c@2:4,128", "n:1+y:4,8"]) == [({"n": 4, "m": 128}, 1.0)]
    assert parse_shapes(odd, ["a+b:c@2:4,128@5"]) == [({"n": 4, "m": 128}, 5.0)]


@pytest.mark.parametrize(
    ("texts", "message"),
    [
        (["n:4@"], "the weight after @ must be a positive number"),
        (["n:4@0"], "the weight after @ must be a positive number"),
        (["n:4@-1"], "the weight after @ must be a positive number"),
        (["n:4@inf"], "the weight after @ must be a positive number"),
        (["n:4@nan"], "the weight after @ must be a positive number"),
        (["n:1+n:2@3"], "two sizes, 1 and 2"),
        (["n:1", "n:2@3"], "two sizes, 2 and 1"),
        (["n:1", "n:2"], "for several sets of sizes give each a weight, as in n:2@1"),
        (["n:1+m:2@3", "n:2@3"], "shape=\"n:2@3\": it gives no size for 'm', which another set does"),
        (["n:1+z:2@3"], "no input or dynamic dim 'z'; it has: x, y, n, m"),
        (["n:1+m@3"], "write NAME:DIMS"),
        (["n:1+@3"], "write NAME:DIMS"),
    ],
)
def test_what_a_shape_may_not_say(texts: list[str], message: str) -> None:
    with pytest.raises(InvalidOption) as error:
        parse_shapes(two_inputs("x", "y"), texts)
    assert message in str(error.value)


def test_where_there_is_one_set_only_weights_are_refused() -> None:
    assert parse_shape(two_inputs("x", "y"), ["n:4", "m:2"]) == {"n": 4, "m": 2}
    with pytest.raises(InvalidOption, match="only `optimize` takes weights"):
        parse_shape(two_inputs("x", "y"), ["n:4@2"])


def test_shares_add_up_and_the_heaviest_set_is_first() -> None:
    given = (({"n": 2}, 1.0), ({"n": 3, "m": 5}, 3.0))
    assert workloads(two_inputs("x", "y"), given, (), 7) == [({"n": 3, "m": 5}, 0.75), ({"n": 2, "m": 7}, 0.25)]


# ---------------------------------------------------------------- the cost


def weighted(share: float, where: Elsewhere | None = None) -> Weighted:
    """The small size with a share, the large one with the rest."""
    return Weighted(CONTEXT, ((SMALL, share), (LARGE, 1 - share)), CostCache(None) if where else None, where)


def test_the_cost_is_the_weighted_sum_of_the_costs() -> None:
    outputs = low_rank().graph.outputs
    small, large = (Cost(Roofline(Context(CONTEXT.opsets, sizes)))(outputs) for sizes in (SMALL, LARGE))
    assert small < large
    for share in (0.25, 1.0):
        assert Cost(weighted(share))(outputs) == pytest.approx(share * small + (1 - share) * large)


@pytest.mark.parametrize(("share", "fastest"), [(0.9, 1), (0.5, 0)])
def test_states_are_compared_by_the_weighted_sum(share: float, fastest: int) -> None:
    """The second is twice as fast at the small size, and takes three times as long at the large
    one."""
    states = [(term("tanh", x(N, 8)),), (term("relu", x(N, 8)),)]
    assert weighted(share, Elsewhere({}, {}, [1.0, 0.5], [1.0, 3.0])).fastest(states) == fastest


@pytest.mark.parametrize("strategy", ["best-first", "saturate"])
@pytest.mark.parametrize(
    ("shapes", "products"),
    [
        (((SMALL, 1.0),), 1),
        (((LARGE, 1.0),), 2),
        (((SMALL, 99.0), (LARGE, 1.0)), 1),
        (((SMALL, 9.0), (LARGE, 1.0)), 2),
    ],
    ids=["small", "large", "mostly small", "a tenth large"],
)
def test_weights_decide_which_form_is_best(shapes: Any, products: int, strategy: str) -> None:
    result = optimize_model(low_rank(), Config(measure=False, shapes=shapes, strategy=strategy))
    assert sum(n.op == "matmul" for n in result.model.nodes()) == products
    assert result.changed == (products == 1)
    assert all(d.passed for d in result.differences)


# ---------------------------------------------------------------- whole models


class Clock:
    """In the place of the clock: the original takes a second at any size, the candidate half of one
    at n = 256, else two."""

    def __init__(self) -> None:
        self.feeds: list[Mapping[str, Any]] = []

    def __call__(
        self, sessions: Sequence[Any], inputs: Mapping[str, Any], seconds: float, *_: float
    ) -> list[list[float]]:
        self.feeds.append(inputs)
        rounds = 20 if len(inputs["x"]) == 256 else 15
        candidate = 0.5 if len(inputs["x"]) == 256 else 2.0
        return [[1.0] * rounds, *([candidate] * rounds for _ in sessions[1:])]


def timed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, share: float, **options: Any) -> tuple[Result, Clock]:
    clock = Clock()
    monkeypatch.setattr(runtime, "interleaved", clock)
    shapes = (({"n": 2}, 1 - share), (LARGE, share))
    return optimize_model(twice(), Config(shapes=shapes, cache=tmp_path / "costs.sqlite", budget=60, **options)), clock


def test_whole_models_are_compared_by_the_weighted_sum(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    result, _ = timed(monkeypatch, tmp_path, 0.9)
    assert result.changed
    timing = result.timing
    assert timing is not None
    assert (timing.original, timing.optimized, timing.runs) == (1.0, pytest.approx(0.65), 15)
    assert timing.ratio == timing.low == timing.high == pytest.approx(1 / 0.65)
    assert [(t.optimized, t.ratio, t.runs) for t in timing.each] == [(0.5, 2.0, 20), (2.0, 0.5, 15)]
    assert not timed(monkeypatch, tmp_path, 0.1)[0].changed


def test_every_set_is_checked(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    result, _ = timed(monkeypatch, tmp_path, 0.9)
    assert {"random inputs 1", "random inputs at n=2"} <= {d.case for d in result.differences}
    assert len({d.case for d in result.differences}) == len(result.differences)  # one output: no case is there twice


def test_the_users_inputs_are_timed_at_their_sizes(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    own = {"x": np.ones((2, 8), np.float32)}
    _, clock = timed(monkeypatch, tmp_path, 0.9, inputs=(own,))
    assert len(clock.feeds) in range(2, 100, 2)  # each comparison is at both sizes
    assert all(each["x"].shape == (256, 8) for each in clock.feeds[::2])
    assert all(each is own for each in clock.feeds[1::2])


def test_the_report_has_the_times_of_every_set(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    result, _ = timed(monkeypatch, tmp_path, 0.9)
    rows = result_data(result, Path("m.onnx"), [])["sizes"]
    assert [(r["sizes"], r["share"], r["time"]["ratio"]) for r in rows] == [
        (LARGE, pytest.approx(0.9), 2.0),
        ({"n": 2}, pytest.approx(0.1), 0.5),
    ]
    summary.show(result, Path("m.onnx"), [])
    printed = capsys.readouterr().out
    assert "n=256 (90%)" in printed
    assert "2.00 [2.00, 2.00]" in printed
    page = html.page(result, [], Path("m.onnx"), [], ["taso-mirage"], {})
    assert '<th scope="row">n=2</th><td>10.0%</td><td>1 s</td><td>2 s</td><td>0.500</td>' in page


@pytest.mark.skipif("CUDAExecutionProvider" not in runtime.working_providers(), reason="there is no GPU here")
def test_every_size_is_a_cuda_graph_of_its_own() -> None:
    session = runtime.Session(serialize(twice()), CUDA)
    assert session.captures
    arrays = [np.random.default_rng(n).normal(size=(n, 8)).astype(np.float32) for n in (2, 256)]
    bound: list[Any] = [session.bound({"x": array}) for array in arrays]
    for run in (*bound, *bound):  # captured long since, and replayed in turn
        run()
    for run, array in zip(bound, arrays, strict=True):
        np.testing.assert_array_equal(run.binding.copy_outputs_to_cpu()[0], np.maximum(array, 0))


def test_one_set_has_one_row(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(runtime, "interleaved", Clock())
    result = optimize_model(twice(), Config(shapes=((LARGE, 5.0),), cache=tmp_path / "costs.sqlite", budget=60))
    assert result.timing is not None
    assert result.timing.each == ()
    found = result_data(result, Path("m.onnx"), [])
    assert found["sizes"] == [{"sizes": LARGE, "share": 1.0, "time": found["time"]}]
    assert "by their shares" not in html.page(result, [], Path("m.onnx"), [], ["taso-mirage"], {})
