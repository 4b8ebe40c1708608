"""Modules of PyTorch by `torch.compile` with the package's backend, and by `taso_mirage.optimize`:
equal to eager, in every kind of result and at every size, or in eager with a warning that says
why."""

from __future__ import annotations

import copy
import operator
import subprocess
import sys
import textwrap
import time
import tomllib
import warnings
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import onnx_ir
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("onnxscript")

from torch_calls import QUICK, Pair, compiled, same  # noqa: E402

import taso_mirage  # noqa: E402
from taso_mirage.errors import InvalidOption, RunFailed, Unsupported  # noqa: E402
from taso_mirage.measure.session import FEW  # noqa: E402
from taso_mirage.pipeline import stages  # noqa: E402
from taso_mirage.targets.cuda import session as cuda_session  # noqa: E402
from taso_mirage.torch import backend as backend_of_torch  # noqa: E402
from taso_mirage.torch import calls as calls_of_sessions  # noqa: E402
from taso_mirage.torch import comparison, export, program  # noqa: E402
from taso_mirage.torch.backend import CapturedGraph, backend  # noqa: E402
from taso_mirage.torch.calls import BoundCalls, OpenSession  # noqa: E402
from taso_mirage.torch.comparison import check_equal, slower  # noqa: E402
from taso_mirage.torch.export import held_sizes, may_change, to_onnx  # noqa: E402
from taso_mirage.torch.program import Program  # noqa: E402

pytestmark = [
    pytest.mark.sampled(2),
    pytest.mark.filterwarnings("default::DeprecationWarning", "default::FutureWarning"),
    pytest.mark.usefixtures("exporting", "compiled_anew"),
]
ROOT = Path(__file__).parents[2]


torch.manual_seed(0)  # some weights give a column that hardly varies: its batch norm only rounds
X = torch.linspace(-2, 2, 32).reshape(4, 8)
LINEAR = torch.nn.Linear(8, 8)
CONV = torch.nn.Conv2d(3, 4, 3)


def aliased(x: Any) -> Any:
    y = LINEAR(x)
    return y, y.view(-1), y[0], y.t(), y.split(2, 1)


def changed(x: Any) -> Any:
    y = LINEAR(x)
    y.mul_(2)
    return y, y.view(-1)


def between(x: Any) -> Any:
    y = LINEAR(x)
    return y, y.add_(1), y[0]


def copied_before(x: Any) -> Any:
    """Two views of a copy, which is of before the change."""
    copied = x.t().reshape(-1)
    x.add_(1)
    return copied.view(4, 8), copied.view(2, 16), LINEAR(x)


def broken(x: Any) -> Any:
    y = LINEAR(x)
    torch._dynamo.graph_break()
    return y.relu() + x, y.shape


def without(x: Any) -> Any:
    with torch.no_grad():
        return LINEAR(x)


RIGHT: dict[str, tuple[Callable[..., Any], tuple[Any, ...]]] = {
    "a tuple": (lambda x: (LINEAR(x), torch.max(LINEAR(x), 0)), (X,)),
    "a dataclass": (lambda x: Pair(LINEAR(x), {"sum": x.sum(0)}), (X,)),
    "constants": (lambda x: (torch.ones(3), 3, None, LINEAR(x)), (X,)),
    "views of the input": (lambda x: (LINEAR(x), x.view(-1), x[1:], x.t()), (X,)),
    "views of results": (aliased, (X,)),
    "integers": (lambda i: (torch.nn.functional.embedding(i, LINEAR.weight), i * 2), (torch.tensor([[1, 2], [7, 0]]),)),
    "truth values": (lambda x: (x > 0, torch.where(x > 1, LINEAR(x), 0)), (X,)),
    "half precision": (lambda x: x @ x.t(), (X.half(),)),
    "a result that changes": (changed, (X,)),
    "a graph break": (broken, (X,)),
    "no gradients inside": (without, (X,)),
    "another layout": (lambda x: LINEAR(x), (X.reshape(8, 4).t(),)),
    "channels last": (CONV, (torch.randn(1, 3, 8, 8).to(memory_format=torch.channels_last),)),
    "no elements": (lambda x: LINEAR(x), (X[:0],)),
}


@pytest.mark.parametrize("name", RIGHT)
def test_results_are_those_of_eager(name: str) -> None:
    function, inputs = RIGHT[name]
    ours, graphs = compiled(function)
    with torch.no_grad(), warnings.catch_warnings():
        warnings.filterwarnings("error", message="taso_mirage")
        same(ours(*inputs), function(*inputs))
    assert graphs
    assert all(graph.results for graph in graphs)


def test_a_view_of_the_input_shares_its_memory() -> None:
    ours, graphs = compiled(lambda x: (LINEAR(x), x.view(-1)))
    x = X.clone()
    with torch.no_grad():
        ours(x)[1].zero_()
    assert graphs[0].results
    assert not x.any()


def test_results_share_no_memory_with_constants_inputs_or_each_other() -> None:
    def function(x: Any) -> Any:
        return torch.ones(3), x + 0, x * 2, x * 2 + 0

    ours, graphs = compiled(function)
    x = X.clone()
    with torch.no_grad():
        for result in ours(x):
            result.add_(1)
        same(x, X)
        same(ours(x), function(x))
    assert graphs[0].results


class Counted(torch.nn.Module):
    """Remembers its arguments, in a buffer, and counts in another one."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("last", torch.zeros(8, 4).t())
        self.register_buffer("count", torch.zeros(2, dtype=torch.int64))

    def forward(self, x: Any) -> Any:
        self.count[1] += 1
        before = self.last * 1
        self.last.copy_(x[:, :8] * self.count[1])
        return before, LINEAR(self.last)


CHANGING: dict[str, Callable[..., Any]] = {
    "an input": lambda x: LINEAR(x.add_(1)),
    "a view of an input": lambda x: (LINEAR(x[1:].mul_(2)), x.view(-1)),
    "batch norm in training": torch.nn.Sequential(LINEAR, torch.nn.BatchNorm1d(8)),
    "batch norm of images": torch.nn.Sequential(
        torch.nn.Unflatten(1, (2, 2, 2)), torch.nn.BatchNorm2d(2, momentum=0.3, affine=False)
    ),
    "buffers": Counted(),
}


@pytest.mark.parametrize("name", CHANGING)
def test_what_changes_in_place_changes_as_in_eager(name: str) -> None:
    function = CHANGING[name]
    twin = copy.deepcopy(function)
    ours, graphs = compiled(function)
    with torch.no_grad(), warnings.catch_warnings():
        warnings.filterwarnings("error", message="taso_mirage")
        for number in range(3):
            x, y = X + number, X + number
            same(ours(x), twin(y))
            same(x, y)
            if isinstance(twin, torch.nn.Module):
                same(list(function.buffers()), list(twin.buffers()))
    assert [len(graph.results) for graph in graphs] == [1]  # a value that changes is no constant


def test_statistics_that_the_exporter_loses_change_as_in_eager() -> None:
    function = torch.nn.Sequential(torch.nn.Unflatten(1, (2, 4)), torch.nn.InstanceNorm1d(2, track_running_stats=True))
    twin = copy.deepcopy(function)
    ours, _ = compiled(function)
    with torch.no_grad():
        with pytest.warns(UserWarning, match="runs in eager PyTorch: its result 1 differs"):
            same(ours(X), twin(X))
        for number in range(3):
            same(list(function.buffers()), list(twin.buffers()))
            same(ours(X + number), twin(X + number))


def test_batch_norm_in_training_at_other_sizes() -> None:
    model = torch.nn.BatchNorm2d(3)
    twin = copy.deepcopy(model)
    ours, graphs = compiled(model)
    with torch.no_grad():
        for rows in (4, 5, 9, 2):
            x = torch.randn(rows, 3, 4, 4)
            same(ours(x), twin(x))
            same(list(model.buffers()), list(twin.buffers()))
    assert all(graph.results for graph in graphs)


def test_a_batch_norm_in_training_is_exported_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """The exporter takes minutes for a large model: the changes by such norms are seen before."""
    exported: list[Any] = []
    monkeypatch.setattr(export, "to_onnx", lambda *given: (exported.append(given), to_onnx(*given))[1])
    ours, graphs = compiled(torch.nn.Sequential(LINEAR, torch.nn.BatchNorm1d(8)))
    with torch.no_grad():
        ours(X)
    assert graphs[0].results
    assert len(exported) == 1


def test_what_may_change_an_operand_is_seen() -> None:
    """Schemas do not say it of the running statistics of norms, which change in training."""
    aten, inner = torch.ops.aten, torch.ops.higher_order.cond
    norms = aten.batch_norm.default, aten.instance_norm.default, aten.native_batch_norm.default
    still = aten.add.Tensor, aten.linear.default, aten.layer_norm.default, aten.dropout.default, operator.getitem
    still += (aten.detach_.default,)  # of constants
    trains, holds, unknown = (
        (X, None, None, X, X, True),
        (X, None, None, X, X, False),
        (X, None, None, None, None, True),
    )
    for targets, args, wanted in (
        ((aten.add_.Tensor, inner), (X, X), True),
        (norms, trains, True),
        (norms, holds, False),
        (norms, unknown, False),
        (still, (X,), False),
    ):
        nodes = [SimpleNamespace(op="call_function", target=target, args=args, kwargs={}) for target in targets]
        assert [may_change(node) for node in nodes] == [wanted] * len(nodes)


def test_what_changes_shares_no_memory_with_other_arguments() -> None:
    ours, _ = compiled(lambda x, y: LINEAR(x.add_(1)) + y)
    x = X.clone()
    with torch.no_grad():
        same(ours(x, X), LINEAR(X + 1) + X)
        wanted = LINEAR(x + 1) + x + 1
        with pytest.warns(UserWarning, match="shares memory with another"):
            same(ours(x, x.view(4, 8)), wanted)


EAGER: dict[str, tuple[Callable[..., Any], str]] = {
    "an input that changes is a result": (lambda x: x.add_(1), "share memory"),
    "a copy before a change": (copied_before, "has a copy"),
    "a view before a change": (between, "share memory"),
    "complex": (lambda x: torch.fft.fft(x), "result 0 is"),
    "a dtype": (lambda x: LINEAR(x) * torch.ones(8, dtype=torch.complex64), "does not run"),
}


@pytest.mark.parametrize("name", EAGER)
def test_what_cannot_be_exported_runs_in_eager_and_says_why(name: str) -> None:
    function, why = EAGER[name]
    ours, graphs = compiled(function)
    x, y = X.clone(), X.clone()
    twin = copy.deepcopy(function)
    with torch.no_grad():
        with pytest.warns(UserWarning, match=f"taso_mirage: a graph of .* runs in eager PyTorch: .*({why})"):
            found = ours(x)
        same(found, twin(y))
    same(x, y)
    if isinstance(function, torch.nn.Module):
        same(dict(function.state_dict()), dict(twin.state_dict()))
    assert not any(graph.results for graph in graphs)


def stirred(x: Any) -> Any:
    h = torch.randn(2, x.size(0), 8)
    y = torch.nn.functional.dropout(LINEAR(x) * h[0], 0.3) + h[1]
    return torch.nn.functional.dropout(y, 0.3, False), torch.rand(3), torch.randint(0, 9, (2,)) + 1


DRAWING: dict[str, tuple[Callable[..., Any], Any]] = {
    "dropout": (torch.nn.Sequential(LINEAR, torch.nn.Dropout(0.5), torch.nn.Softmax(-1)), X),
    "whole channels": (torch.nn.Sequential(CONV, torch.nn.Dropout2d(0.5)), torch.randn(2, 3, 8, 8)),
    "another layout": (
        torch.nn.Sequential(CONV, torch.nn.Dropout(0.5)),
        torch.randn(2, 3, 8, 8).to(memory_format=torch.channels_last),
    ),
    "several": (stirred, X),
}


@pytest.mark.parametrize("name", DRAWING)
def test_random_numbers_are_those_of_eager_with_the_same_seed(name: str) -> None:
    function, x = DRAWING[name]
    ours, graphs = compiled(function)
    with torch.no_grad():
        for seed in (1, 1, 2):
            torch.manual_seed(seed)
            found = ours(x), torch.rand(2)  # as many were drawn
            torch.manual_seed(seed)
            same(found, (function(x), torch.rand(2)))
    assert graphs[0].results


def test_a_share_that_is_computed_is_drawn_in_eager() -> None:
    function = lambda x, n: torch.nn.functional.dropout(LINEAR(x), 0.1 * n)  # noqa: E731
    ours, _ = compiled(function)
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for number in (4, 5, 6):
            torch.manual_seed(0)
            found = ours(X, number)
            torch.manual_seed(0)
            same(found, function(X, number))


def test_what_stays_in_eager_draws_once() -> None:
    function = lambda x: torch.fft.fft(torch.nn.functional.dropout(x, 0.5))  # noqa: E731
    ours, graphs = compiled(function)
    with torch.no_grad():
        torch.manual_seed(0)
        with pytest.warns(UserWarning, match="runs in eager PyTorch"):
            found = ours(X), torch.rand(2)
        torch.manual_seed(0)
        same(found, (function(X), torch.rand(2)))
    assert not graphs[0].results


@pytest.mark.parametrize("owning", [False, True])
def test_calls_read_what_lies_there_now(owning: bool, tmp_path: Path) -> None:
    """Inputs at the same place and at others, of no elements and of other strides; results that are
    kept; and calls from several threads."""
    calls = bound(tmp_path, owning)
    x = torch.ones(4, 8)
    kept = []
    for value in (x, x.fill_(2), x * 3, torch.arange(32.0).reshape(8, 4).t(), x[:0], x[:3]):
        (found,) = calls([value])
        kept.append((found, value * 2 + 1))
        torch.testing.assert_close(found, value * 2 + 1)
    for found, wanted in kept:
        torch.testing.assert_close(found, wanted)
    values = [torch.full((1000, 8), float(i)) for i in range(8)]
    with ThreadPoolExecutor(4) as threads:
        for (found,), value in zip(threads.map(calls, [[v] for v in values * 20]), values * 20, strict=True):
            assert torch.equal(found, value * 2 + 1)


def test_a_run_on_cuda_is_in_the_order_of_the_stream(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The options asked of ONNX Runtime, without a GPU; where it takes a part for the CPU, runs are
    waited for."""
    asked: list[tuple[dict[str, str], bool]] = []
    whole = True

    def opened(source: str, providers: Any, alone: bool = False, kernels: bool | None = None) -> str:
        asked.append((providers[0][1], alone))
        if alone and not whole:
            raise RunFailed("a part runs on the CPU")
        return "a session"

    monkeypatch.setattr(cuda_session, "inference_session", opened)
    monkeypatch.setattr(cuda_session, "load_libraries", lambda: None)
    monkeypatch.setattr(cuda_session, "check_provider", lambda *_: None)
    path = tmp_path / "model.onnx"
    onnx_ir.save(to_onnx(LINEAR, [X], [frozenset()]).model, path)
    assert cuda_session.session_on_stream(str(path), 75, False) == ("a session", True)
    options, alone = asked[-1]
    assert alone
    assert (options["user_compute_stream"], options["use_tf32"], options["enable_cuda_graph"]) == ("75", "0", "1")
    whole = False
    assert cuda_session.session_on_stream(str(path), 77, True) == ("a session", False)
    options, alone = asked[-1]
    assert not alone
    assert (options["user_compute_stream"], options["use_tf32"], options["enable_cuda_graph"]) == ("77", "1", "0")


def test_a_run_says_whether_it_waits_and_which_graph_it_is() -> None:
    waited, unwaited = (cuda_session.graph_run("3", waits) for waits in (True, False))
    assert waited.get_run_config_entry("gpu_graph_id") == unwaited.get_run_config_entry("gpu_graph_id") == "3"
    assert unwaited.get_run_config_entry("disable_synchronize_execution_providers") == "1"
    with pytest.raises(RuntimeError):
        waited.get_run_config_entry("disable_synchronize_execution_providers")


def bound(folder: Path, owning: bool) -> BoundCalls:
    """Calls of 2 x + 1 for any number of rows."""

    class Module(torch.nn.Module):
        def forward(self, x: Any) -> Any:
            return x * 2 + 1

    model = to_onnx(Module(), [X], [frozenset({0})]).model
    onnx_ir.save(model, folder / "model.onnx")
    opened = OpenSession(taso_mirage.session(folder / "model.onnx"))
    names = [[each.name for each in part] for part in (model.graph.inputs, model.graph.outputs)]
    return BoundCalls([opened], *names, torch.device("cpu"), owning=owning)


def test_a_large_graph_is_optimized_with_few_samples(monkeypatch: pytest.MonkeyPatch) -> None:
    """The optimized graph runs, and is compared with eager, with all samples."""
    monkeypatch.setattr(export, "LARGE", 1 << 12)
    monkeypatch.setattr(export, "SAMPLE", 1 << 10)
    model = torch.nn.Sequential(LINEAR, torch.nn.ReLU(), torch.nn.LayerNorm(8))
    ours, graphs = compiled(lambda x, y: model(x) + y)
    x, y = torch.randn(200, 8), torch.randn(8)
    with torch.no_grad():
        same(ours(x, y), model(x) + y)
    (result,) = graphs[0].results
    assert [n.shape[0] for n in result.original.graph.inputs if len(n.shape) > 1] != [200]
    assert list(result.workloads[0][0].values()) == [32]
    plain, graphs = compiled(lambda x: x.reshape(100, 16).sum(0))  # the exporter fixes the number of rows
    same(plain(x), x.reshape(100, 16).sum(0))
    assert [n.shape for n in graphs[0].results[0].original.graph.inputs] == [(200, 8)]


def test_what_is_slower_than_eager_stays_there(monkeypatch: pytest.MonkeyPatch) -> None:
    """The clock is made up: only calls take time."""
    done: list[str] = []
    now = [0.0]
    monkeypatch.setattr(comparison.time, "perf_counter", lambda: now[0])

    def call(name: str, seconds: float) -> Callable[[], None]:
        def run() -> None:
            done.append(name)
            now[0] += seconds

        return run

    found = slower(call("ours", 0.004), call("eager", 0.002), False)
    assert found == pytest.approx(2.0)
    assert done.count("ours") == FEW + 2  # a clear verdict ends the race
    assert slower(call("ours", 0.002), call("eager", 0.004), False) is None
    assert slower(call("ours", 0.004), call("eager", 0.0039), False) is None  # a difference that may be luck
    assert slower(call("ours", 0.00009), lambda: None, False) is None  # too short a call to look at
    assert slower(call("ours", 0.002), call("eager", 0.00001), False) == pytest.approx(200)


def test_a_graph_that_is_slower_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(program, "slower", lambda *_: 1.5)
    monkeypatch.setattr(stages, "fused", lambda result, *_: result.noted("no kernels: the time was over"))
    graphs: list[CapturedGraph] = []

    def kept(captured: Any, example: Any) -> CapturedGraph:
        graphs.append(CapturedGraph(captured, {"budget": 1}))
        return graphs[-1]

    slow = r"runs in eager PyTorch: it takes 1\.50 times as long here; no kernels: the time was over$"
    with torch.no_grad(), pytest.warns(UserWarning, match=slow):
        same(torch.compile(LINEAR, backend=kept)(X), LINEAR(X))
    assert not graphs[0].results
    (way,) = graphs[0].ways
    assert way.reason == "it takes 1.50 times as long here"
    assert "no kernels: the time was over" in way.notes
    assert way.notes[-1].startswith("seconds of its stages: ")
    assert program.spent({"read": 0.26, "sizes": 0.04, "search": 3.0}) == "seconds of its stages: read 0.3, search 3.0"


def test_autocast_is_not_taken_for_single_precision() -> None:
    ours, _ = compiled(LINEAR)
    with torch.no_grad(), torch.autocast("cpu"), pytest.warns(UserWarning, match="autocast is on"):
        same(ours(X), LINEAR(X))


class Sized(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(8, 8)

    def forward(self, x: Any, n: int = 3) -> Any:
        y = torch.relu(self.linear(x))
        return y.reshape(-1, 4) * n, y.shape[0] * 2, y.sum(0)


def test_sizes_and_numbers_may_change() -> None:
    model = Sized()
    ours, graphs = compiled(model)
    with torch.no_grad():
        for rows, number in ((4, 3), (5, 3), (9, 3), (9, 4), (9, 6), (1, 6), (0, 6), (30, 11)):
            x = torch.randn(rows, 8)
            same(ours(x, number), model(x, number))
    assert all(graph.results for graph in graphs)
    assert len(graphs) < 8  # not one for each size


def test_a_size_for_which_the_model_does_not_hold_makes_another() -> None:
    n = torch.export.Dim.AUTO

    class Module(torch.nn.Module):
        def forward(self, x: Any, y: Any) -> Any:
            return (x + y).reshape(-1, 4)

    exported = torch.export.export(
        Module(), (torch.ones(4, 6), torch.ones(4, 6)), dynamic_shapes=({0: n}, {0: n}), strict=False
    )
    sizes = held_sizes(exported, ("x", "y"))
    assert sizes.hold((torch.ones(8, 6), torch.ones(8, 6)))
    assert not sizes.hold((torch.ones(8, 6), torch.ones(6, 6)))  # a dim of both
    assert not sizes.hold((torch.ones(5, 6), torch.ones(5, 6)))  # 30 is no multiple of 4
    assert not sizes.hold((torch.ones(8, 12), torch.ones(8, 12)))  # a fixed dim
    assert not sizes.hold((torch.ones(1, 6), torch.ones(1, 6)))  # out of its range


def test_a_graph_with_conditions_on_its_sizes_is_compiled_once_for_all_that_meet_them() -> None:
    model = torch.nn.Sequential(torch.nn.Conv2d(3, 4, 3), torch.nn.Flatten())
    ours, graphs = compiled(model)
    with torch.no_grad():
        for rows in (8, 9, 10, 11, 12):
            x = torch.randn(2, 3, rows, 8)
            same(ours(x), model(x))
    assert [len(graph.results) for graph in graphs] == [1, 1]  # of the first size, and of others


def test_threads_that_come_at_once_compile_once(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[Any] = []

    class Slow:
        gain = None

        def __init__(self, *given: Any) -> None:
            time.sleep(0.1)
            made.append(self)

        def holds(self, given: Any) -> bool:
            return True

        def stale(self) -> bool:
            return False

        def __call__(self, given: Any) -> Any:
            return [torch.tensor(made.index(self))]

    monkeypatch.setattr(backend_of_torch, "Program", Slow)
    ours, graphs = compiled(lambda x: x + 1)
    ours(X)
    made.clear()
    graphs[0]._programs = []
    with ThreadPoolExecutor(4) as threads:
        assert [int(each) for (each,) in threads.map(graphs[0], [X] * 4)] == [0] * 4


def test_weights_that_change_in_place_are_seen() -> None:
    model = Sized()
    ours, graphs = compiled(model)
    with torch.no_grad():
        same(ours(X), model(X))
        model.linear.weight.mul_(3)
        same(ours(X), model(X))
        model.load_state_dict(Sized().state_dict())
        same(ours(X), model(X))
        model.linear.bias.data = torch.ones(8)
        same(ours(X), model(X))
    assert [len(graph.results) for graph in graphs] == [1]  # the outdated module was dropped


def test_weights_of_inference_mode_cannot_be_watched() -> None:
    with torch.inference_mode():
        model = Sized()
        ours, _ = compiled(model)
        with pytest.warns(UserWarning, match="made in inference mode"):
            same(ours(X), model(X))


@pytest.mark.sampled(1)
def test_a_wrong_result_is_found_and_eager_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    run = Program._run
    monkeypatch.setattr(Program, "_run", lambda self, given: [each + 1 for each in run(self, given)])
    ours, _ = compiled(LINEAR)
    with torch.no_grad(), pytest.warns(UserWarning, match="result 0 differs from eager PyTorch by"):
        same(ours(X), LINEAR(X))


def test_results_that_are_rounding_alone_are_compared_with_float64() -> None:
    """The mean of normalized values, over their divisor: noise of the largest 1e-7."""
    model = torch.nn.Sequential(torch.nn.BatchNorm1d(8), torch.nn.Linear(8, 8, bias=False), torch.nn.BatchNorm1d(8))
    ours, graphs = compiled(model)
    x = torch.randn(1000, 8)
    with torch.no_grad(), warnings.catch_warnings():
        warnings.filterwarnings("error", message="taso_mirage")
        ours(x)
    assert model[2].running_mean.abs().max() < 1e-7
    assert graphs[0].results


@pytest.mark.sampled(1)
def test_what_is_further_from_float64_than_eager_is_wrong() -> None:
    exact = torch.zeros(3, dtype=torch.float64)
    noise, ours = torch.tensor([0.0, 1e-9, 0.0]), torch.tensor([4e-9, 0.0, 0.0])
    check_equal([ours], [noise], lambda: [exact])
    for wrong in (ours * 4, ours * torch.nan):
        with pytest.raises(Unsupported, match="result 0 differs"):
            check_equal([wrong], [noise], lambda: [exact])
    with pytest.raises(Unsupported, match="result 0 differs"):
        check_equal([ours], [noise], lambda: None)


def test_a_size_that_the_runtime_refuses_runs_in_eager_pytorch() -> None:
    """ONNX Runtime pads no empty batch circularly; at other sizes it runs the graph."""

    def padded(x: Any) -> Any:
        return torch.nn.functional.pad(x, (1, 1, 1, 1), mode="circular").tanh()

    ours, graphs = compiled(padded)
    with torch.no_grad():
        empty, full = torch.ones(0, 3, 8, 8), torch.rand(2, 3, 8, 8)
        with pytest.warns(UserWarning, match="runs in eager PyTorch: its model does not run: .* the given inputs 1"):
            same(ours(empty), padded(empty))
        same(ours(full), padded(full))
    assert [way.by for graph in graphs for way in graph.ways] == ["eager", "ours"]


def test_training_is_one_clear_error() -> None:
    ours, _ = compiled(LINEAR)
    with pytest.raises(InvalidOption, match=r"for inference.*torch\.no_grad"):
        ours(X)


def test_options() -> None:
    captured = torch.fx.symbolic_trace(LINEAR)
    with pytest.raises(
        InvalidOption, match="'budgett' is not known here; the options are: allow_rounding, alpha, budget"
    ):
        backend(captured, (), options={"budgett": 1})
    with pytest.raises(InvalidOption, match="has no modes"):
        backend(captured, (), mode="max-autotune")


def test_optimize_takes_a_module() -> None:
    model = Sized()
    found, results = taso_mirage.optimize(model, (X, 5), return_result=True, **QUICK)
    with torch.no_grad():
        wanted = model(X, 5)
    same(found(X, 5), wanted)  # without torch.no_grad
    assert len(results) == 1
    assert results[0].terms_after > 0
    assert len(list(found.parameters())) == 2
    same(taso_mirage.optimize(LINEAR, {"input": X}, **QUICK)(X), without(X))
    with pytest.raises(InvalidOption, match="needs example_inputs"):
        taso_mirage.optimize(model)
    with pytest.raises(InvalidOption, match=r"are for a torch\.nn\.Module"):
        taso_mirage.optimize("model.onnx", X)


class Recurrent(torch.nn.Module):
    def __init__(self, kind: str) -> None:
        super().__init__()
        self.recurrent = getattr(torch.nn, kind)(8, 4, bidirectional=True)

    def forward(self, x: Any) -> Any:
        return self.recurrent(x.unsqueeze(1))[0] * 2


@pytest.mark.parametrize("kind", ["LSTM", pytest.param("GRU", marks=pytest.mark.slow)])
def test_recurrent_modules_are_captured_whole(kind: str) -> None:
    model = Recurrent(kind)
    found, results = taso_mirage.optimize(model, X, return_result=True, **QUICK)
    with torch.no_grad():
        same(found(X), model(X))
    assert len(results) == 1
    assert kind in {repr(value) for node in results[0].original.nodes() for _, value in node.attrs}


def test_a_recurrent_module_that_would_be_unrolled_stays_in_eager() -> None:
    model = Recurrent("RNN")
    with pytest.warns(UserWarning, match="writes rnn_tanh step by step"):
        found = taso_mirage.optimize(model, X, **QUICK)
    with torch.no_grad():
        same(found(X), model(X))


@pytest.mark.sampled(5)
@pytest.mark.parametrize("runs", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_the_entry_point_is_found_by_its_name(runs: bool, tmp_path: Path) -> None:
    """In a process that sees the entry points of pyproject.toml as an installed package's. The
    found function compiles in every other test here; where it `runs`, in that process too."""
    points = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["entry-points"]["torch_dynamo_backends"]
    folder = tmp_path / "named_here-1.dist-info"
    folder.mkdir()
    (folder / "METADATA").write_text("Metadata-Version: 2.1\nName: named-here\nVersion: 1\n")
    lines = "\n".join(f"{name} = {place}" for name, place in points.items())
    (folder / "entry_points.txt").write_text(f"[torch_dynamo_backends]\n{lines}\n")
    code = f"""
        import sys
        sys.path[:0] = [{str(tmp_path)!r}, {str(ROOT)!r}]
        import taso_mirage.cli
        assert "torch" not in sys.modules
        import torch
        from taso_mirage.torch.backend import backend
        assert torch._dynamo.lookup_backend("taso_mirage") is backend
        model = torch.nn.Linear(8, 8)
        ours = torch.compile(model, backend="taso_mirage", options={{"measure": False, "budget": 1}})
        with torch.inference_mode():
            if {runs}:
                torch.testing.assert_close(ours(torch.ones(2, 8)), model(torch.ones(2, 8)))
        print("equal")
    """
    done = subprocess.run([sys.executable, "-c", textwrap.dedent(code)], capture_output=True, text=True)
    assert done.stdout == "equal\n", done.stderr
    assert "taso_mirage: a graph" not in done.stderr


def test_a_large_graph_that_names_its_samples_is_optimized_with_all(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows that it takes by number are not among the first few."""
    monkeypatch.setattr(export, "LARGE", 1 << 12)
    monkeypatch.setattr(export, "SAMPLE", 1 << 10)
    weight = torch.randn(8, 8)
    ours, graphs = compiled(lambda x, i: x[i] @ weight)
    x, i = torch.randn(200, 8), torch.arange(0, 200, 4)
    with torch.no_grad():
        same(ours(x, i), x[i] @ weight)
    assert graphs[0].results


def test_a_weight_is_no_tensor_that_has_fewer_samples(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(export, "LARGE", 1 << 12)
    monkeypatch.setattr(export, "SAMPLE", 1 << 10)
    model = torch.nn.Embedding(512, 8)
    ours, graphs = compiled(model)
    tokens = torch.randint(0, 512, (32, 2))
    with torch.no_grad():
        same(ours(tokens), model(tokens))
    assert [n.shape for n in graphs[0].results[0].original.graph.inputs] == [(32, 2)]


def test_a_graph_that_is_refused_later_draws_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """A weight is changed in place, so it is compiled anew; that is refused, and eager PyTorch
    draws the numbers drawn for it."""
    model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Dropout(0.5))
    ours, graphs = compiled(model)
    x = torch.randn(4, 8)

    def drawn(call: Callable[..., Any]) -> tuple[Any, Any]:
        torch.manual_seed(3)
        with torch.no_grad():
            return call(x), torch.rand(2)

    same(drawn(ours), drawn(model))
    with torch.no_grad():
        model[0].weight.add_(1)

    def refused(*_: object) -> None:
        raise Unsupported("it is made up")

    monkeypatch.setattr(program, "check_equal", refused)
    with pytest.warns(UserWarning, match="it is made up"):
        found = drawn(ours)
    same(found, drawn(model))
    assert not graphs[0].results


def test_tensors_that_are_drawn_keep_their_memory() -> None:
    def function(x: Any) -> Any:
        a = torch.randn(2, 3)
        return a, a.view(6), x + 1

    ours, _ = compiled(function)
    with torch.no_grad():
        a, flat, _ = ours(torch.ones(3))
    assert a.data_ptr() == flat.data_ptr()


def test_inputs_lie_where_the_session_reads_them() -> None:
    """An operand that a kernel of CUDA wants in the processor's memory is there: a binding would
    copy it once, and not again."""

    class Info:
        def __init__(self, name: str) -> None:
            self.name = name

    class Session:
        def get_input_memory_infos(self) -> list[Info]:
            return [Info(name) for name in ("Cuda", "Cpu", "CudaPinned")]

    gpu, host = torch.device("cuda:0"), torch.device("cpu")
    assert calls_of_sessions._places(Session(), gpu) == [gpu, host, host]
    assert calls_of_sessions._places(Session(), host)[1] == host


def test_an_old_runtime_is_said() -> None:
    with pytest.raises(Unsupported, match=r"it needs ONNX Runtime 1\.24 or newer"):
        calls_of_sessions._places(object(), torch.device("cpu"))
