"""A graph that differs from one before by sizes or values of weights: the earlier rewrites are
applied again, and nothing is searched."""

from __future__ import annotations

import gc
from types import SimpleNamespace
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("onnxscript")

from taso_mirage.optimize_options import Options  # noqa: E402
from taso_mirage.search.rulesets import rules  # noqa: E402
from taso_mirage.torch import export, program, sessions  # noqa: E402
from taso_mirage.torch.backend import CapturedGraph  # noqa: E402
from taso_mirage.torch.program import PRECEDENTS, Precedent, precedent_of  # noqa: E402

pytestmark = [
    pytest.mark.filterwarnings("default::DeprecationWarning", "default::FutureWarning"),
    pytest.mark.usefixtures("exporting", "compiled_anew"),
]
OPTIONS = {"measure": False, "budget": 2.0}


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """The options of all calls of the optimizer."""
    found: list[dict[str, Any]] = []
    optimize = sessions.optimize

    def kept(*given: Any, **options: Any) -> Any:
        found.append(options)
        return optimize(*given, **options)

    monkeypatch.setattr(sessions, "optimize", kept)
    return found


def test_the_export_is_in_the_budget(asked: list[dict[str, Any]], monkeypatch: pytest.MonkeyPatch) -> None:
    exported, clock = export.to_onnx, SimpleNamespace(now=50.0)

    def slowly(*given: Any) -> Any:
        clock.now += 12.0
        return exported(*given)

    monkeypatch.setattr(export, "to_onnx", slowly)
    for module in (program, sessions):
        monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=lambda: clock.now))
    model = Doubled(12)
    with torch.no_grad():
        torch.compile(model, backend=lambda captured, _: CapturedGraph(captured, {"measure": False, "budget": 60.0}))(
            torch.randn(4, 12)
        )
    assert asked[0]["budget"] == pytest.approx(60 * (1 - sessions.FINISHING) - 12)
    assert sessions.budget_left(10.0, 12.0) == 10 * sessions.LEAST


class Doubled(torch.nn.Module):
    """With an operator that a rule leaves out."""

    def __init__(self, width: int = 8) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(width, width)

    def forward(self, x: Any) -> Any:
        return torch.relu(torch.relu(self.linear(x)))


def compiled(model: Any) -> tuple[Any, list[CapturedGraph]]:
    graphs: list[CapturedGraph] = []

    def kept(captured: Any, example: Any) -> CapturedGraph:
        graphs.append(CapturedGraph(captured, OPTIONS))
        return graphs[-1]

    return torch.compile(model, backend=kept), graphs


def test_a_second_length_takes_what_the_first_found(asked: list[dict[str, Any]]) -> None:
    model = Doubled()
    ours, graphs = compiled(model)
    with torch.no_grad():
        for rows in (4, 5, 9):
            x = torch.randn(rows, 8)
            torch.testing.assert_close(ours(x), model(x))
    first, second = (result for graph in graphs for result in graph.results)
    assert first.changed
    assert second.changed
    assert first.equations == second.equations
    assert (first.written, second.written) == ((), ())  # their files were temporary
    assert "rules" not in asked[0]
    assert {each.name for each in asked[1]["rules"]} == set(first.equations)
    assert (asked[1]["effort"], asked[1]["measure"], asked[1]["kernels"]) == ("quick", False, "off")


def test_other_weights_of_the_same_shapes_take_it_too(asked: list[dict[str, Any]]) -> None:
    kept = []
    for model in (Doubled(), Doubled(), Doubled(16)):
        torch._dynamo.reset()
        ours, graphs = compiled(model)
        kept.append((ours, graphs))
        x = torch.randn(4, model.linear.in_features)
        with torch.no_grad():
            torch.testing.assert_close(ours(x), model(x))
    assert ["rules" in options for options in asked] == [False, True, False]  # the last one is wider


def test_what_was_found_is_forgotten_with_its_graphs() -> None:
    before = set(PRECEDENTS)
    ours, graphs = compiled(Doubled(24))
    with torch.no_grad():
        ours(torch.randn(4, 24))
    assert len(set(PRECEDENTS) - before) == 1
    del ours, graphs
    torch._dynamo.reset()
    gc.collect()
    assert set(PRECEDENTS) <= before


def outcome(changed: bool, timing: Any = None, **found: Any) -> Any:
    usual = {"rules": rules(), "equations": {}, "kernels": ()}
    return SimpleNamespace(**{**usual, "changed": changed, "timing": timing, **found})


def test_what_nothing_was_decided_for_has_all_rules_and_no_measurement() -> None:
    undecided = precedent_of([outcome(False)])
    assert undecided.rules is None
    options = undecided.options({"budget": 60.0})
    assert options["measure"] is False
    assert "rules" not in options
    decided = precedent_of([outcome(False, timing=1.0)])
    assert decided.rules is not None
    assert not decided.rules.equations  # no rule that was measured to be no faster is tried again


def test_a_graph_like_one_with_kernels_has_time_for_its_own() -> None:
    name = next(iter(rules())).name
    found = precedent_of([outcome(True, equations={name: 2}, kernels=("one",))])
    options = found.options({"measure": True})
    assert 0 < options["budget"] < Options().budget / 2
    assert options["measure"] is True
    assert [each.name for each in options["rules"]] == [name]
    assert options["partial"] is False
    corrected = precedent_of([outcome(True, equations={"mutant.1": 1})])
    assert corrected.options({})["partial"] is True


def test_options_of_a_precedent_exclude_nothing_that_a_user_gave() -> None:
    found = Precedent(rules().where(lambda each: False), False, False)
    given = {"allow_rounding": "1:*", "scheduler": "tcp://host:8786", "strategy": "both"}
    options = found.options(given)
    assert "rules" not in options  # the user names some
    assert options["scheduler"] is None  # it measures, and nothing is measured
    Options(**options).config()
