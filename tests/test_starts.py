"""Kernels are put into the form of a model that is the fastest with them."""

from __future__ import annotations

from dataclasses import replace

import pytest
from fused_models import clock, quick
from test_convolutions import conv, model, w, x

from taso_mirage.ir.model import Model
from taso_mirage.ir.terms import Node
from taso_mirage.measure.target import CUDA
from taso_mirage.operators.ops import term
from taso_mirage.pipeline import optimize_model
from taso_mirage.pipeline.fuse import alone, comparisons, fused, stage
from taso_mirage.pipeline.fuse.starts import share_besides, starts_of
from taso_mirage.report.result import Result
from taso_mirage.search.config import Config
from taso_mirage.search.rewriter import ModelCandidate
from taso_mirage.search.weights import fold_weights
from taso_mirage.targets.lowering import here

CONFIG = Config(budget=1000.0, seconds=0.0)


def two(second: Node) -> Model:
    return model(term("relu", second))


def result() -> Result:
    """A search that wrote the second of two convolutions with a larger kernel, for which there are
    none."""
    first, kernel = term("relu", conv(x("x", 1, 8, 6, 6), w("v", 8, 8, 3, 3))), w("w", 9, 8, 3, 3)
    before = two(conv(first, kernel))
    larger = term("pad", kernel, pads=(0, 0, 0, 0, 0, 0, 1, 1))
    after, _ = fold_weights(two(conv(first, larger, pads=(1, 1, 2, 2))))
    made = optimize_model(before, Config(measure=False, budget=0.0))
    assert made.model.graph == before.graph
    normal = ModelCandidate("passes", before, (), made.cost_before, made.target)
    return replace(made, model=after, changed=True, normal=normal)


def test_both_forms_have_their_regions() -> None:
    made = result()
    first, second = starts_of(made, here("cpu"), {})
    assert (first.model, second.model) == (made.model, before_search(made))
    assert sum(map(len, second.kinds.values())) == 2
    assert len(starts_of(made, here("cpu"), {}, several=False)) == 1
    assert 0.0 <= share_besides(first, second) < 1.0


def test_one_form_is_enough_where_the_other_has_no_other_convolution() -> None:
    made = result()
    assert made.normal is not None
    for other in (
        replace(made, normal=replace(made.normal, model=made.model)),
        replace(made, normal=replace(made.normal, target=CUDA)),
        replace(made, normal=None),
        replace(made, changed=False),
    ):
        assert len(starts_of(other, here("cpu"), {})) == 1


@pytest.mark.parametrize(("slower", "kernels"), [(-1.0, 2), (10.0, 1)])
def test_kernels_go_where_the_whole_is_predicted_to_be_the_fastest(
    slower: float, kernels: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The form with two of them, unless it is slower by more than the second saves."""
    quick(monkeypatch)
    monkeypatch.setattr(comparisons.Comparisons, "slower_by", lambda *_: slower)
    measured = list[object]()
    monkeypatch.setattr(alone, "in_child", lambda *given: measured.append(given) or [2.0, 1.0])
    found = fused(result(), CONFIG, "search")
    assert [n.op for n in found.model.nodes()].count("opaque") == kernels
    assert all(d.passed for d in found.differences)
    assert len(measured) == 2, "what both forms have is measured once"
    assert found.unfused is not None
    assert found.unfused.graph == (result().model if kernels == 1 else before_search(found)).graph


def test_a_form_that_stays_slower_with_its_kernels_gives_way(monkeypatch: pytest.MonkeyPatch) -> None:
    """Kernels in the second form are tried beside the first one as it is; then the first gets its
    own."""
    quick(monkeypatch)
    monkeypatch.setattr(comparisons.Comparisons, "slower_by", lambda *_: -1.0)
    gains = [*[0.9] * 4, 2.0]  # in the form before the search both kinds together, and each
    monkeypatch.setattr(comparisons, "interleaved", clock(gains))
    found = fused(result(), CONFIG, "search")
    assert [n.op for n in found.model.nodes()].count("opaque") == 1
    assert found.unfused is not None
    assert found.unfused.graph == result().model.graph
    assert all(d.passed for d in found.differences)


def test_there_is_no_time_for_two_forms(monkeypatch: pytest.MonkeyPatch) -> None:
    quick(monkeypatch)
    monkeypatch.setattr(stage, "FORMS", 1e9)
    monkeypatch.setattr(comparisons.Comparisons, "slower_by", lambda *_: pytest.fail("it was asked"))
    found = fused(replace(result(), seconds={"load the original": 1e-6}), CONFIG, "search")
    assert [n.op for n in found.model.nodes()].count("opaque") == 1


def before_search(found: Result) -> Model:
    assert found.normal is not None
    return found.normal.model
