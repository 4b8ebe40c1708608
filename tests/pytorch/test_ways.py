"""Graphs beside Inductor: a graph that it computes faster runs by its code, whole, with eager's
semantics.

Inductor is played by eager PyTorch, and races are decided by hand, but for the last tests.
"""

from __future__ import annotations

import copy
import pickle
import shutil
import warnings
import weakref
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="the extra `torch` is not installed")
pytest.importorskip("onnxscript")

import taso_mirage  # noqa: E402
from taso_mirage.errors import InvalidOption  # noqa: E402
from taso_mirage.torch import backend, comparison, program, ways  # noqa: E402
from taso_mirage.torch import inductor as code  # noqa: E402
from taso_mirage.torch.backend import CapturedGraph, check_options  # noqa: E402
from taso_mirage.torch.functionalization import changed_arguments  # noqa: E402
from taso_mirage.torch.modules import Optimized  # noqa: E402

pytestmark = [
    pytest.mark.sampled(2),
    pytest.mark.filterwarnings("default::DeprecationWarning", "default::FutureWarning"),
    pytest.mark.usefixtures("exporting", "compiled_anew"),
]
X = torch.linspace(-2, 2, 32).reshape(4, 8)
F = torch.nn.functional
OPTIONS = {"budget": 1, "kernels": "off", "fallback": "inductor"}
BY_INDUCTOR = r"a graph of \d+ operations runs by Inductor: it takes 1\.50 times as long here as Inductor's code"


class Played:
    """Inductor, played by eager PyTorch; `answers` are the results of the races with it, in their
    order."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.answers: list[float | None] = [1.5, 1.5]
        self.compiled, self.calls = list[Any](), 0
        monkeypatch.setattr(code, "compile_by_inductor", self.compile)
        monkeypatch.setattr(ways, "slower", self.race)

    def compile(self, captured: Any, given: Any) -> Callable[..., Any]:
        self.compiled.append(captured)

        def call(*given: Any) -> Any:
            self.calls += 1
            return captured.forward(*given)

        return call

    def race(self, call: Callable[[], Any], code: Callable[[], Any], cuda: bool) -> float | None:
        for each in (call, code, call, code):
            each()
        return self.answers.pop(0)


@pytest.fixture(autouse=True)
def long_calls(monkeypatch: pytest.MonkeyPatch) -> None:
    """All calls are long enough to be looked at, and ours are faster than eager PyTorch."""
    monkeypatch.setattr(program, "slower", lambda *_: None)
    monkeypatch.setattr(comparison, "SHORT", 0.0)


@pytest.fixture
def inductor(monkeypatch: pytest.MonkeyPatch) -> Played:
    return Played(monkeypatch)


def compiled(function: Callable[..., Any], **options: Any) -> tuple[Callable[..., Any], list[CapturedGraph]]:
    graphs: list[CapturedGraph] = []

    def kept(captured: Any, example: Any) -> CapturedGraph:
        graphs.append(CapturedGraph(captured, {**OPTIONS, **options}))
        return graphs[-1]

    return torch.compile(function, backend=kept), graphs


def same(ours: Callable[..., Any], function: Callable[..., Any], *given: Any) -> None:
    """Equal results, random numbers, and changes in place, in two calls with random numbers of one
    seed."""
    for seed in (1, 2):
        one, other = ([each.clone() for each in given] for _ in range(2))
        with torch.no_grad():
            torch.manual_seed(seed)
            found = ours(*one), torch.rand(2)
            torch.manual_seed(seed)
            wanted = function(*other), torch.rand(2)
        torch.testing.assert_close((found, one), (wanted, other))


def run_by(graphs: list[CapturedGraph]) -> list[str]:
    return [way.by for graph in graphs for way in graph.ways]


def test_what_inductor_computes_faster_runs_by_it(inductor: Played) -> None:
    model = torch.nn.Linear(8, 8)
    ours, graphs = compiled(model)
    with pytest.warns(UserWarning, match=BY_INDUCTOR):
        same(ours, model, X)
    (way,) = graphs[0].ways
    assert (way.by, way.operations) == ("inductor", 1)
    assert "1.50 times as long" in way.reason
    assert not graphs[0].results
    calls = inductor.calls
    with torch.no_grad():
        model.weight.mul_(2)  # weights are arguments there
    same(ours, model, X)
    assert inductor.calls == calls + 2
    assert len(inductor.compiled) == 1


def test_a_program_that_was_let_go_has_no_memory(inductor: Played, monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[weakref.ref[Any]] = []

    class Watched(program.Program):
        def __init__(self, *given: Any) -> None:
            super().__init__(*given)
            self.cycle = self  # as calls on a GPU have one
            made.append(weakref.ref(self))

    monkeypatch.setattr(backend, "Program", Watched)
    ours, _ = compiled(torch.sin)
    with pytest.warns(UserWarning, match=BY_INDUCTOR):
        same(ours, torch.sin, X)
    assert [each() for each in made] == [None]


def test_what_it_computes_no_faster_does_not(inductor: Played) -> None:
    model = torch.nn.Linear(8, 8)
    inductor.answers = [None, None]
    ours, graphs = compiled(model)
    same(ours, model, X)
    with torch.no_grad():
        model.weight.mul_(2)  # another program, another race, the same code
    same(ours, model, X)
    assert run_by(graphs) == ["ours"]
    assert not inductor.answers
    assert len(inductor.compiled) == 1


def test_eager_pytorch_may_be_the_fastest(inductor: Played) -> None:
    inductor.answers = [1.5, None]
    ours, graphs = compiled(torch.sin)
    with pytest.warns(UserWarning, match="runs in eager PyTorch: it takes 1.50 times"):
        same(ours, torch.sin, X)
    assert run_by(graphs) == ["eager"]


@pytest.mark.parametrize("option", [{"measure": False}, {"fallback": "eager"}, {"fallback": None}, {}])
def test_nothing_is_compiled_by_it_where_that_cannot_matter(
    option: dict[str, Any], inductor: Played, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not option:
        monkeypatch.setattr(comparison, "SHORT", 60.0)
    ours, graphs = compiled(torch.sin, **option)
    same(ours, torch.sin, X)
    assert not inductor.compiled
    assert run_by(graphs) == ["ours"]


def test_on_cuda_it_is_the_default(monkeypatch: pytest.MonkeyPatch) -> None:
    tried: list[str | None] = []
    monkeypatch.setattr(ways, "_cuda", lambda given: True)
    monkeypatch.setattr(ways.Fallback, "_try", lambda self, *given: tried.append(self._wanted))
    for wanted in (None, "eager", "inductor"):
        ways.Fallback(torch.fx.symbolic_trace(lambda x: x.sin()), wanted).code_for(torch.sin, [X])
    assert tried == [None, "inductor"]


def test_an_unknown_fallback_is_refused() -> None:
    with pytest.raises(InvalidOption, match="fallback='triton': it is one of 'eager', 'inductor'"):
        check_options({"fallback": "triton"})


def test_a_failure_of_inductor_is_one_warning(inductor: Played, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*_: Any) -> Any:
        warnings.warn("said by the way", stacklevel=1)
        raise RuntimeError("no compiler\nmore of it")

    monkeypatch.setattr(code, "compile_by_inductor", fails)
    ours, graphs = compiled(torch.sin)
    with pytest.warns(UserWarning, match="Inductor") as said:
        same(ours, torch.sin, X)
    (one,) = [str(each.message) for each in said]
    assert one.startswith("taso_mirage: Inductor does not compile a graph")
    assert one.endswith("RuntimeError: no compiler")
    assert run_by(graphs) == ["ours"]


@pytest.mark.parametrize(("factor", "by"), [(1.0, "inductor"), (1.0 + 1e-5, "inductor"), (1.0 + 2e-3, "ours")])
def test_its_results_are_compared_with_those_of_eager_pytorch(
    factor: float, by: str, inductor: Played, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Results are refused that are as far apart as operands in TF32 make them."""
    made = inductor.compile
    monkeypatch.setattr(
        code, "compile_by_inductor", lambda *given: lambda *own: [each * factor for each in made(*given)(*own)]
    )
    ours, graphs = compiled(torch.sin)
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        ours(X)
    assert run_by(graphs) == [by]
    differs = [str(each.message) for each in said if "is not used: its result 0 differs" in str(each.message)]
    assert len(differs) == (by == "ours")


def test_what_it_changes_in_place_is_compared_too(inductor: Played, monkeypatch: pytest.MonkeyPatch) -> None:
    def cached(cache: Any, x: Any) -> Any:
        cache.add_(x)
        return torch.sin(x)

    made = inductor.compile

    def wrong(captured: Any, given: Any) -> Callable[..., Any]:
        def call(*own: Any) -> Any:
            found = made(captured, given)(*own)
            for each in own:
                each.mul_(2.0) if each.shape == (7,) else None
            return found

        return call

    monkeypatch.setattr(code, "compile_by_inductor", wrong)
    ours, graphs = compiled(cached)
    with pytest.warns(UserWarning, match="is not used"):
        ours(torch.ones(7), torch.ones(7) * 3)
    assert "inductor" not in run_by(graphs)


def test_a_graph_that_cannot_be_compiled_here_runs_by_it_where_that_is_faster(inductor: Played) -> None:
    ours, graphs = compiled(torch.fft.fft)
    with pytest.warns(UserWarning, match=r"a graph of 1 operations runs by Inductor: its result 0 is"):
        same(ours, torch.fft.fft, X)
    assert run_by(graphs) == ["inductor"]


def test_what_has_no_room_beside_eager_runs_by_it(inductor: Played, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: Any) -> Any:
        raise torch.OutOfMemoryError("no room for a copy")

    monkeypatch.setattr(ways.Fallback, "_copies", full)
    ours, graphs = compiled(torch.fft.fft)
    with pytest.warns(UserWarning, match="a graph of 1 operations runs in eager PyTorch"):
        same(ours, torch.fft.fft, X)
    assert run_by(graphs) == ["eager"]
    assert not inductor.compiled


def in_parts(x: Any) -> Any:
    return torch.sort(x.sin() * 2, stable=True)[0].cos() + 1


@pytest.mark.sampled(2)
@pytest.mark.parametrize(("answer", "wanted"), [(None, ["eager", "ours", "ours"]), (1.5, ["inductor"])])
def test_pieces_are_measured_together(answer: float | None, wanted: list[str], inductor: Played) -> None:
    inductor.answers = [None, answer]  # beside eager PyTorch, and beside it
    ours, graphs = compiled(in_parts)
    with pytest.warns(UserWarning, match=r"(1 of the 6 .* runs in eager|a graph of 6 .* runs by Inductor).*sort"):
        same(ours, in_parts, X)
    assert run_by(graphs) == wanted
    assert len(inductor.compiled) == 1


class Training(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm, self.dropout = torch.nn.BatchNorm1d(8), torch.nn.Dropout(0.5)

    def forward(self, x: Any) -> Any:
        return self.dropout(self.norm(x)).sin()


def test_a_race_changes_nothing(inductor: Played) -> None:
    """The statistics of a norm, an input, and random numbers are those of one call of eager."""
    model = Training()
    twin = copy.deepcopy(model)
    ours, graphs = compiled(model)
    with pytest.warns(UserWarning, match=BY_INDUCTOR):
        same(ours, twin, X)
    torch.testing.assert_close(dict(model.state_dict()), dict(twin.state_dict()))
    assert run_by(graphs) == ["inductor"]


def grown(x: Any, y: Any) -> Any:
    x.add_(1)
    return x.sin() + y


def test_what_is_changed_and_shares_memory_is_left_to_eager(inductor: Played) -> None:
    ours, graphs = compiled(grown)
    with pytest.warns(UserWarning, match=BY_INDUCTOR):
        same(ours, grown, X, X)
    calls = inductor.calls
    one, other = X.repeat(2, 1), X.repeat(2, 1)
    with torch.no_grad():
        torch.testing.assert_close(ours(one[:4], one[2:6]), grown(other[:4], other[2:6]))
    torch.testing.assert_close(one, other)
    assert inductor.calls == calls
    assert len(graphs) == 1


def sampled(x: Any) -> Any:
    return torch.bernoulli(x.sigmoid() * 0.5).sin() + 1


def test_what_draws_of_elements_is_not_compiled_by_it_but_pieces_are(inductor: Played) -> None:
    inductor.answers = [None, 1.5, 1.5, None]  # the last is of all pieces, beside eager PyTorch
    ours, graphs = compiled(sampled)
    drawn = pytest.warns(UserWarning, match="1 of the 5 .* runs in eager PyTorch: it draws random numbers")
    with pytest.warns(UserWarning, match=BY_INDUCTOR), drawn:
        same(ours, sampled, X)
    assert run_by(graphs) == ["eager", "ours", "inductor"]
    assert len(inductor.compiled) == 2


def test_changes_in_place_are_seen_without_a_run() -> None:
    def function(state: Any, x: Any, flat: Any, statistics: Any, fixed: Any) -> Any:
        state[0].add_(x[0])
        own = x.relu()
        F.relu_(own)
        F.batch_norm(x, statistics, statistics + 1, training=True)
        F.batch_norm(x, fixed, fixed)
        return flat.view(-1).mul_(2), own

    given = [torch.ones(4, 8), X.clone(), torch.ones(2, 2), torch.zeros(8), torch.ones(8)]
    before = copy.deepcopy(given)
    assert changed_arguments(torch.fx.symbolic_trace(function), given) == {0, 2, 3}
    torch.testing.assert_close(given, before)
    assert changed_arguments(torch.fx.symbolic_trace(lambda x: x * x.sum().item()), [X]) is None


def test_an_optimized_module_says_how_it_runs_and_its_copy_runs_so_too(inductor: Played) -> None:
    with pytest.warns(UserWarning, match=BY_INDUCTOR):
        made = taso_mirage.optimize(torch.nn.Linear(8, 8), X, **OPTIONS)
    inductor.answers = [1.5, 1.5]
    again = pickle.loads(pickle.dumps(made))
    assert isinstance(again, Optimized)
    with pytest.warns(UserWarning, match=BY_INDUCTOR):
        torch.testing.assert_close(again(X), made(X))
    assert [way.by for way in (*made.ways, *again.ways)] == ["inductor"] * 2


# ---------------------------------------------------------------- Inductor itself


@pytest.fixture
def faster(monkeypatch: pytest.MonkeyPatch) -> None:
    if shutil.which("g++") is None:
        pytest.skip("needs a C++ compiler")
    monkeypatch.setattr(ways, "slower", lambda *_: 1.5)


def laid_out(x: Any) -> Any:
    y = x.permute(0, 2, 3, 1).sin()
    x.add_(1)
    return y, y[0], x[:1]


@pytest.mark.usefixtures("faster")
def test_its_code_has_the_semantics_of_eager() -> None:
    x = torch.randn(2, 3, 4, 5)
    ours, graphs = compiled(laid_out)
    with pytest.warns(UserWarning, match="by Inductor"):
        same(ours, laid_out, x)
    with torch.no_grad():
        found, wanted = ours(x), laid_out(x.clone())
    assert [each.stride() for each in found] == [each.stride() for each in wanted]
    assert found[2].data_ptr() == x.data_ptr()
    assert found[1].data_ptr() == found[0].data_ptr()
    assert run_by(graphs) == ["inductor"]


@pytest.mark.sampled(2)
@pytest.mark.usefixtures("faster")
def test_its_code_is_made_for_the_strides_of_what_changes() -> None:
    def function(x: Any) -> Any:
        x.add_(1)
        return x.sin() * 2

    ours, graphs = compiled(function)
    one, other = torch.randn(4, 16).repeat(2, 1, 1)
    with pytest.warns(UserWarning, match="by Inductor"), torch.no_grad():
        torch.testing.assert_close(ours(one[:, ::2]), function(other[:, ::2]))
    torch.testing.assert_close(one, other)
    assert run_by(graphs) == ["inductor"]


@pytest.mark.usefixtures("faster")
def test_its_code_holds_for_free_sizes() -> None:
    def function(x: Any) -> Any:
        return x.sin() * x.shape[0]

    ours, graphs = compiled(function)
    for rows in (4, 6, 7, 64):
        with nullcontext() if rows > 6 else pytest.warns(UserWarning, match="by Inductor"):
            same(ours, function, torch.randn(rows, 8))
    assert run_by(graphs) == ["inductor"] * 2
