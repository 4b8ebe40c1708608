"""Modules of PyTorch with features that few graphs have: numbers that may change, operators that
the exporter does not know or has wrong, rows that see nothing, threads, and copies."""

from __future__ import annotations

import copy
import pickle
import warnings
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from math import inf
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("onnxscript")

from torch_calls import QUICK, compiled, same  # noqa: E402

import taso_mirage  # noqa: E402
from taso_mirage.torch import program, sessions, ways  # noqa: E402
from taso_mirage.torch.backend import CapturedGraph  # noqa: E402
from taso_mirage.torch.comparison import in_float64  # noqa: E402
from taso_mirage.torch.decompositions import DECOMPOSITIONS  # noqa: E402
from taso_mirage.torch.export import to_onnx  # noqa: E402
from taso_mirage.torch.program import Program  # noqa: E402

pytestmark = [
    pytest.mark.sampled(2),
    pytest.mark.filterwarnings("default::DeprecationWarning", "default::FutureWarning"),
    pytest.mark.usefixtures("exporting", "compiled_anew"),
]
functional = torch.nn.functional


torch.manual_seed(0)
X = torch.randn(4, 8)
LINEAR = torch.nn.Linear(8, 8)


def test_what_runs_may_be_larger_than_what_was_exported(monkeypatch: pytest.MonkeyPatch) -> None:
    """Kernels read weights in forms of their own; the file is a temporary one."""
    asked: list[Any] = []

    def heard(*given: Any, **options: Any) -> Any:
        asked.append(options["may_grow"])
        return optimize(*given, **options)

    optimize = sessions.optimize
    monkeypatch.setattr(sessions, "optimize", heard)
    for chosen in ({}, {"may_grow": False}):
        taso_mirage.optimize(LINEAR, X, **QUICK, **chosen)
        torch._dynamo.reset()
    assert asked == [True, False]


# ---------------------------------------------------------------- numbers and sizes


def test_numbers_of_free_graphs_are_fixed_where_they_are_no_operands() -> None:
    """With `dynamic=True` the epsilon of a norm is an input of the graph, as is a factor."""
    model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.LayerNorm(8, eps=0.5), torch.nn.ELU(0.3))
    calls: list[tuple[CapturedGraph, list[Any]]] = []

    def kept(captured: Any, example: Any) -> Callable[..., Any]:
        graph = CapturedGraph(captured, QUICK)
        return lambda *given: (calls.append((graph, list(given))), graph(*given))[1]

    ours = torch.compile(lambda x, scale: model(x) * scale, backend=kept, dynamic=True)
    with torch.no_grad(), warnings.catch_warnings():
        warnings.filterwarnings("error", message="taso_mirage")
        for rows, scale in ((4, 1.5), (3, 2.5)):
            same(ours(X[:rows], scale), model(X[:rows]) * scale)
        graph, given = calls[0]
        assert [len(graph.results) for graph, _ in calls] == [1, 1]
        place = next(
            i for i, each in enumerate(given) if isinstance(each, torch.Tensor) and each.dim() == 0 and each == 0.5
        )
        given[place] = torch.tensor(0.1, dtype=torch.float64)
        same(list(graph(*given)), list(graph._captured.forward(*given)))
    assert len(graph.results) == 2


def test_guards_name_inputs_as_the_graph_does() -> None:
    """The guards name `L['L_x_']`, which the exporter calls `l_x_`."""
    graph = torch.fx.Graph()
    x = graph.placeholder("L_x_")
    graph.output((graph.call_method("reshape", (x, -1, 4)),))
    sizes = to_onnx(torch.fx.GraphModule({}, graph), [torch.ones(8)], [frozenset({0})]).sizes
    assert sizes.guards
    assert sizes.hold([torch.ones(12)])
    assert not sizes.hold([torch.ones(13)])


def test_a_size_that_a_part_takes_to_be_fixed_is() -> None:
    """The windows of an adaptive pool are attributes in ONNX."""

    class Pool(torch.nn.Module):
        def forward(self, x: Any) -> Any:
            return functional.adaptive_avg_pool1d(x, 4)

    sizes = to_onnx(Pool(), [torch.ones(2, 3, 16)], [frozenset({0, 2})]).sizes
    assert sizes.hold([torch.ones(5, 3, 16)])
    assert not sizes.hold([torch.ones(5, 3, 17)])  # as many windows of 4, but not those
    assert not sizes.hold([torch.ones(5, 3, 20)])


# ---------------------------------------------------------------- results


@pytest.mark.parametrize(
    "function",
    [
        lambda x: (LINEAR(x).expand(3, 4, 8), (x + 1).unfold(1, 3, 1)),
        lambda x: ((x * 2)[:, 1:6], x.mul(3).chunk(2, 1)[1], LINEAR(x)),
        lambda x: (LINEAR(x), LINEAR.weight, LINEAR.weight.t()),
    ],
    ids=["elements in several places", "gaps", "weights"],
)
def test_results_lie_as_those_of_eager(function: Callable[..., Any]) -> None:
    ours, graphs = compiled(function)
    with torch.no_grad():
        found, wanted = ours(X), function(X)
    same(found, wanted)
    assert [each.untyped_storage().nbytes() for each in found] == [each.untyped_storage().nbytes() for each in wanted]
    assert graphs[0].results


def test_integers_are_subtracted_from_a_float() -> None:
    ours, graphs = compiled(lambda mask, x: ((1.0 - mask) * -3.0, 1.5 - x, 2 - mask))
    given = torch.tensor([[1, 0], [1, 1]]), X
    with torch.no_grad():
        same(ours(*given), ((1.0 - given[0]) * -3.0, 1.5 - X, 2 - given[0]))
    assert graphs[0].results


def test_a_graph_of_views_is_not_compiled() -> None:
    ours, graphs = compiled(lambda x: (x.view(-1), x[1:], x.shape[0]))
    with torch.no_grad(), warnings.catch_warnings():
        warnings.filterwarnings("error", message="taso_mirage")
        same(ours(X), (X.view(-1), X[1:], 4))
    assert not graphs[0].results


# ---------------------------------------------------------------- attention


@pytest.mark.parametrize("mask_type", [None, 0, 1, 2])
@pytest.mark.parametrize(("gelu", "first"), [(True, False), (False, True)])
def test_a_layer_of_an_encoder_in_parts(mask_type: int | None, gelu: bool, first: bool) -> None:
    operator = torch.ops.aten._transformer_encoder_layer_fwd.default
    parts = DECOMPOSITIONS[operator]
    layer = torch.nn.TransformerEncoderLayer(8, 2, 16)
    shape = {None: (), 0: (5, 5), 1: (3, 5), 2: (3, 2, 5, 5)}[mask_type]
    mask = None if mask_type is None else torch.rand(shape) > 0.6
    attention, norms = layer.self_attn, (layer.norm1, layer.norm2)
    given = (torch.randn(3, 5, 8), 8, 2, attention.in_proj_weight, attention.in_proj_bias)
    given += (attention.out_proj.weight, attention.out_proj.bias, gelu, first, 0.1)
    given += tuple(each for part in (*norms, layer.linear1, layer.linear2) for each in (part.weight, part.bias))
    with torch.no_grad():
        torch.testing.assert_close(parts(*given, mask, mask_type), operator(*given, mask, mask_type), equal_nan=True)


def test_an_encoder_is_compiled() -> None:
    model = torch.nn.TransformerEncoder(torch.nn.TransformerEncoderLayer(8, 2, 16, batch_first=True), 1).eval()
    ours, graphs = compiled(model)
    x = torch.randn(2, 5, 8)
    with torch.no_grad():
        same(ours(x), model(x))
    assert graphs[0].results


def attended(x: Any, mask: Any) -> Any:
    q = x.unflatten(-1, (2, -1)).transpose(1, 2)
    return LINEAR(functional.scaled_dot_product_attention(q, q, q, mask).transpose(1, 2).flatten(2)), q @ q.mT


def heads(x: Any, mask: Any) -> Any:
    q = x.unflatten(-1, (2, -1)).transpose(1, 2)
    return functional.scaled_dot_product_attention(q, q, q, mask)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("function", [attended, heads])
@pytest.mark.parametrize("kind", ["truth values", "numbers"])
def test_rows_of_attention_that_see_nothing_are_zero(function: Callable[..., Any], kind: str) -> None:
    """Compared where no row is hidden, and not again where one is."""
    whole = torch.ones(2, 1, 4, 4, dtype=torch.bool)
    left = whole.tril()
    left[1, :, :, :2] = False
    masks = [whole.tril(), left]
    if kind == "numbers":
        masks = [torch.where(each, 0.0, -inf) for each in masks]
    ours, graphs = compiled(function)
    x = torch.randn(2, 4, 8)
    with torch.no_grad():
        for mask in masks:
            same(ours(x, mask), function(x, mask))
    assert [len(graph.results) for graph in graphs] == [1]


# ---------------------------------------------------------------- operators that stay in eager PyTorch


@torch.library.custom_op("taso_mirage_tests::twice", mutates_args=())
def twice(x: torch.Tensor) -> torch.Tensor:
    return x * 2


@twice.register_fake
def _(x: Any) -> Any:
    return torch.empty_like(x)


@torch.library.custom_op("taso_mirage_tests::grow", mutates_args=("x",))
def grow(x: torch.Tensor) -> None:
    x.add_(1)


def sampled(x: Any) -> Any:
    mean = LINEAR(x)
    return LINEAR(mean + torch.randn_like(mean)), mean, mean.view(-1)


def grown(x: Any) -> Any:
    y = LINEAR(x)
    grow(y)
    x.mul_(2)
    return LINEAR(y), y[0], x.view(-1)


def ordered(x: Any) -> Any:
    values, places = torch.sort(LINEAR(x), dim=1, stable=True)
    return LINEAR(values) * x.shape[0], places


PARTLY: dict[str, tuple[Callable[..., Any], str]] = {
    "an operator of others": (
        lambda x: LINEAR(twice(LINEAR(x))),
        r"1 of the 3 .*cannot export taso_mirage_tests\.twice",
    ),
    "one that changes its operand": (grown, r"1 of the .*cannot export taso_mirage_tests\.grow"),
    "random numbers": (sampled, r"1 of the .*random numbers"),
    "several results": (ordered, r"1 of the .*cannot export aten\.sort\.stable"),
}


@pytest.mark.sampled(2)
@pytest.mark.parametrize("name", PARTLY)
def test_an_operator_that_cannot_be_exported_stays_in_eager_alone(name: str) -> None:
    function, why = PARTLY[name]
    ours, graphs = compiled(function)
    with torch.no_grad():
        for seed in (1, 2):
            x, y = X + seed, X + seed
            torch.manual_seed(seed)
            if seed == 1:
                with pytest.warns(UserWarning, match=f"taso_mirage: {why}"):
                    found = ours(x), torch.rand(2)
            else:
                found = ours(x), torch.rand(2)
            torch.manual_seed(seed)
            same(found, (function(y), torch.rand(2)))
            same(x, y)
    assert len(graphs[0].results) == 2


def test_pieces_that_are_slower_together_do_not_run(monkeypatch: pytest.MonkeyPatch) -> None:
    """Threads of the runtime and of PyTorch may be in each other's way."""
    monkeypatch.setattr(program, "slower", lambda *_: None)  # each piece alone is as fast as eager PyTorch
    monkeypatch.setattr(ways, "slower", lambda *_: 2.0)
    function = PARTLY["random numbers"][0]
    ours, graphs = compiled(function, measure=True)
    why = r"a graph of .* in eager PyTorch: it draws .* in pieces around that it takes 2\.00 times as long"
    with torch.no_grad():
        torch.manual_seed(1)
        with pytest.warns(UserWarning, match=why):
            found = ours(X), torch.rand(2)
        torch.manual_seed(1)
        same(found, (function(X), torch.rand(2)))
    assert [way.by for way in graphs[0].ways] == ["eager"]


def test_threads_of_a_session_rest_between_calls() -> None:
    """The threads of another session, and PyTorch's, would find no core: pieces took many times as
    long as eager."""
    ours, graphs = compiled(LINEAR)
    with torch.no_grad():
        same(ours(X), LINEAR(X))
    session = graphs[0]._programs[0]._calls._run.__self__
    assert session.get_session_options().get_session_config_entry("session.force_spinning_stop") == "1"


def test_pieces_that_were_interrupted_are_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    answers: list[BaseException | None] = [KeyboardInterrupt(), None]

    def raced(*given: Any) -> None:
        if (answer := answers.pop(0)) is not None:
            raise answer

    monkeypatch.setattr(program, "slower", lambda *_: None)  # each piece alone is as fast as eager PyTorch
    monkeypatch.setattr(ways, "slower", raced)
    function = PARTLY["an operator of others"][0]
    ours, graphs = compiled(function, measure=True)
    with torch.no_grad():
        with pytest.raises(KeyboardInterrupt):
            ours(X)
        with pytest.warns(UserWarning, match="1 of the 3 .* runs in eager PyTorch"):
            same(ours(X), function(X))
    assert not answers
    assert len(graphs[0]._pieces) == 2


def test_pieces_share_the_budget() -> None:
    ours, graphs = compiled(PARTLY["an operator of others"][0])
    with torch.no_grad(), pytest.warns(UserWarning, match="taso_mirage"):
        ours(X)
    budgets = [piece._options["budget"] for piece in graphs[0]._pieces]
    assert budgets == [graphs[0]._options["budget"] / 3] * 2


@pytest.mark.parametrize("order", [torch.sort, partial(torch.topk, k=3)])
def test_what_orders_stays_where_the_order_among_equals_is_another(order: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """The order among equals matters for tokens by their expert, and for experts by their
    scores."""
    run = Program._run

    def reversed_order(self: Any, given: Any) -> Any:
        """The run with another order among equals, as a runtime may sort."""
        found = run(self, given)
        return [each.flip(0) if each.dtype == torch.int64 else each for each in found]

    monkeypatch.setattr(Program, "_run", reversed_order)
    expert = torch.tensor([1, 0, 1, 0])
    function = lambda x, expert: (LINEAR(x), order(expert)[1])  # noqa: E731
    ours, graphs = compiled(function)
    with torch.no_grad(), pytest.warns(UserWarning, match=r"1 of the .*result 1 is not equal"):
        same(ours(X, expert), function(X, expert))
    assert len(graphs[0].results) == 1


def test_a_graph_that_does_not_run_in_float64_says_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    """PyTorch prints where the call of a graph fails."""

    def function(x: Any) -> Any:
        return x.to(torch.float32) @ x.transpose(0, 1)

    assert in_float64(torch.fx.symbolic_trace(function), [X]) is None
    assert capsys.readouterr().err == ""


def test_a_graph_of_many_such_operators_stays_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ways, "PLACES", 0)
    ours, graphs = compiled(PARTLY["an operator of others"][0])
    with torch.no_grad(), pytest.warns(UserWarning, match=r"taso_mirage: a graph of 3 .*taso_mirage_tests\.twice"):
        same(ours(X), LINEAR(LINEAR(X) * 2))
    assert not graphs[0].results


# ---------------------------------------------------------------- threads and copies


def test_threads_export_one_after_the_other() -> None:
    """PyTorch has one state for its exports, that several at a time leave broken."""
    ours, graphs = compiled(LINEAR)

    def run(rows: int) -> Any:
        with torch.no_grad():
            return ours(X[:rows])

    with warnings.catch_warnings(), ThreadPoolExecutor(3) as threads:
        warnings.filterwarnings("error", message="taso_mirage")
        for rows, found in zip((2, 3, 4, 2), threads.map(run, (2, 3, 4, 2)), strict=True):
            torch.testing.assert_close(found, LINEAR(X[:rows]).detach())
    assert graphs
    assert all(graph.results for graph in graphs)


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda each: pickle.loads(pickle.dumps(each))])
def test_a_copy_of_an_optimized_module_has_weights_of_its_own(copied: Callable[[Any], Any]) -> None:
    first = taso_mirage.optimize(torch.nn.Linear(8, 8), X, **QUICK)
    second = copied(first)
    with torch.no_grad():
        second.module.weight.mul_(2)
        same(second(X), second.module(X))
        same(first(X), first.module(X))
        assert not torch.equal(first.module.weight, second.module.weight)
    assert second.results


def test_a_module_of_which_no_graph_is_captured_says_so() -> None:
    class Hidden(torch.nn.Module):
        @torch._dynamo.disable
        def forward(self, x: Any) -> Any:
            return LINEAR(x)

    with pytest.warns(UserWarning, match="captures no graph of Hidden.*TORCH_LOGS=graph_breaks"):
        found = taso_mirage.optimize(Hidden(), X, **QUICK)
    assert not found.results
