"""The effort of an optimization: the options that `--effort` sets, that options given beside it
count, and that the quick one gives the same bytes and measures nothing."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import onnx
import pytest
from commandline import one_line, result_of, run
from small_models import model

import taso_mirage
from taso_mirage import onnx_io
from taso_mirage import optimize_options as options
from taso_mirage.errors import InvalidOption
from taso_mirage.ir.terms import Tensor, variable
from taso_mirage.measure import session as runtime
from taso_mirage.operators.ops import term
from taso_mirage.pipeline.stages import optimize_model
from taso_mirage.search import config
from taso_mirage.search.config import Config, Stop
from taso_mirage.search.effort import EFFORTS

TRANSFORMER = Path(__file__).parents[2] / "models" / "mini_transformer.onnx"


def test_an_effort_sets_what_is_not_given() -> None:
    usual, quick, thorough = (options.options_of({"effort": name}) for name in ("default", "quick", "thorough"))
    assert usual == options.Options()
    assert (quick.measure, quick.partial, quick.kernels) == (False, False, "off")
    assert (thorough.budget, thorough.strategy) == (600.0, "both")
    assert thorough.config().effort.states > usual.config().effort.states > quick.config().effort.states


def test_an_option_that_is_given_counts_beside_an_effort() -> None:
    asked = options.options_of({"effort": "quick", "measure": True, "budget": 5})
    assert (asked.measure, asked.budget, asked.kernels) == (True, 5, "off")
    assert options.options_of({"effort": "thorough", "budget": 60.0}).budget == 60.0


@pytest.mark.parametrize("name", ["fast", "", "Quick", None, 3])
def test_other_efforts_are_refused(name: Any) -> None:
    with pytest.raises(InvalidOption, match=r"effort.*quick.*default.*thorough"):
        taso_mirage.optimize(onnx.load(TRANSFORMER), effort=name)


def test_the_command_line_names_the_efforts(tmp_path: Path) -> None:
    assert "thorough" in one_line(run("optimize", TRANSFORMER, "-o", tmp_path / "o.onnx", "--effort", "slow", check=2))


@pytest.mark.sampled(3)
def test_quick_gives_the_same_bytes_and_measures_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    def measured(*_: Any, **__: Any) -> None:
        raise AssertionError("something was measured")

    for name in ("interleaved", "timed_nodes"):
        monkeypatch.setattr(runtime, name, measured)
    given = onnx.load(TRANSFORMER)
    first, result = taso_mirage.optimize(given, effort="quick", return_result=True)
    again = taso_mirage.optimize(given, effort="quick")
    assert first.SerializeToString(deterministic=True) == again.SerializeToString(deterministic=True)
    assert len(first.graph.node) < len(given.graph.node)
    assert result.timing is None
    cases = ["random inputs 1", "random inputs with wide integers"]  # of which fusions of the runtime may refuse some
    assert [d.case for d in result.differences] == cases


def test_quick_says_nothing_and_leaves_no_file(tmp_path: Path, monkeypatch: Any, capfd: Any) -> None:
    """Exporters embed this effort."""
    monkeypatch.chdir(tmp_path)
    taso_mirage.optimize(onnx.load(TRANSFORMER), effort="quick")
    assert list(tmp_path.iterdir()) == []
    assert capfd.readouterr() == ("", "")


@pytest.mark.sampled(2)
def test_the_command_of_the_quick_effort_searches_a_little(tmp_path: Path) -> None:
    found = result_of(run("optimize", TRANSFORMER, "-o", tmp_path / "o.onnx", "--effort", "quick", "--json"))
    assert found["changed"]
    assert found["time"] is None
    assert 0 < found["search"]["states"] <= EFFORTS["quick"].states * found["search"]["distinct_parts"]
    assert "time" not in found["search"]["ended"]


@pytest.mark.sampled(2)
def test_both_strategies_search_one_after_the_other(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[str] = []

    def noting(name: str) -> Any:
        (way,) = config.STRATEGIES[name]

        def search(*args: Any) -> Any:
            seen.append(name)
            return way(*args)

        return search

    monkeypatch.setitem(config.STRATEGIES, "both", (noting("best-first"), noting("saturate")))  # type: ignore[misc]
    asked = Config(budget=60.0, measure=False, partial=False, strategy="both", effort=EFFORTS["thorough"])
    x = variable("x", Tensor("float32", (4, 8)))
    optimize_model(model((x,), (term("relu", term("relu", x)),)), asked, stop=Stop())
    assert (seen[0], seen[-1]) == ("best-first", "saturate")


@pytest.mark.parametrize("most", [0, 1, 5])
def test_a_search_ends_after_so_many_matches_in_all_parts(most: int) -> None:
    """Beside the first of a part, none is tried after them: the same ones however slow the machine
    is."""
    effort = replace(EFFORTS["quick"], matches=most)
    made = onnx_io.load(TRANSFORMER)
    result = optimize_model(made, Config(budget=600.0, measure=False, partial=False, effort=effort))
    assert result.statistics.matches <= most
    assert "number of matches" in result.statistics.ended
