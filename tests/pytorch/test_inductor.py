"""The optimized graph as one function by Inductor: kernels are operators in it, and it runs where
it gives the same and is faster.

Inductor is played by eager PyTorch, and races are decided by hand, but for the last tests.
"""

from __future__ import annotations

import gc
import shutil
import warnings
from collections.abc import Callable, Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from fused_models import WIDTH, model

torch = pytest.importorskip("torch", reason="the extra `torch` is not installed")
pytest.importorskip("onnxscript")

from taso_mirage.errors import Unsupported  # noqa: E402
from taso_mirage.ir.dims import symbol  # noqa: E402
from taso_mirage.ir.model import Model  # noqa: E402
from taso_mirage.ir.terms import Graph, Node, Tensor, variable  # noqa: E402
from taso_mirage.measure.target import CPU, CUDA  # noqa: E402
from taso_mirage.onnx_io.build import standalone  # noqa: E402
from taso_mirage.operators.interpret import interpret  # noqa: E402
from taso_mirage.operators.ops import term  # noqa: E402
from taso_mirage.runtime.embed import EmbeddedRegion, embed  # noqa: E402
from taso_mirage.runtime.plan import PlannedNode  # noqa: E402
from taso_mirage.torch import comparison, inductor, program, ways  # noqa: E402
from taso_mirage.torch.backend import CapturedGraph  # noqa: E402
from taso_mirage.torch.inductor import PLACED, ComposedCalls, OptimizedPart, candidates  # noqa: E402
from taso_mirage.torch.meaning import TorchMeaning  # noqa: E402

pytestmark = [
    pytest.mark.sampled(2),
    pytest.mark.filterwarnings("default::DeprecationWarning", "default::FutureWarning"),
    pytest.mark.usefixtures("exporting", "compiled_anew"),
]
HERE = torch.device("cpu")
ROWS = 5
F = torch.nn.functional


# ---------------------------------------------------------------- a model with a kernel


class Launched:
    """The launches of a kernel, which is played by its goal."""

    def __init__(self, goal: Graph) -> None:
        self.goal, self.shapes, self.calls = goal, list[Any](), 0

    def maker(self, record: Any, shapes: Sequence[Any]) -> Callable[..., Any]:
        assert record == {"the": "record"}
        self.shapes.append(shapes)
        return self.launch

    def launch(self, *inputs: Any) -> Any:
        self.calls += 1
        assert all(each.is_contiguous() for each in inputs)
        values = dict(zip(self.goal.inputs, inputs, strict=True))
        found = interpret(self.goal.outputs, TorchMeaning(HERE), values)
        results = tuple(found[o] for o in self.goal.outputs)
        return results if len(results) > 1 else results[0]


def goal_of(region: Sequence[Node], inputs: Sequence[Node]) -> Graph:
    return EmbeddedRegion(tuple(inputs), tuple(region), PlannedNode("cuda", "", (), (), "", "")).original


@pytest.fixture(params=[ROWS, "rows"])
def kerneled(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> tuple[Model, Model, Launched]:
    """A model, and with a kernel of two results for gelu(x + b), and for the sum."""
    before = model(request.param)
    total = next(n for n in before.nodes() if n.op == "add")
    activated = next(n for n in before.nodes() if n.op == "gelu")
    types = tuple(n.tensor for n in total.args), (total.tensor, activated.tensor)
    region = EmbeddedRegion(total.args, (total, activated), PlannedNode("cuda", "kernel_0f", *types, "", "", (b"",)))
    launched = Launched(goal_of(region.outputs, region.inputs))
    monkeypatch.setattr(inductor, "launch_maker", lambda target: launched.maker)
    return before, embed(before, [region]), launched


def calls(parts: Sequence[OptimizedPart], *given: Any, otherwise: Any = None, results: Sequence[str] = ()) -> Any:
    models = [part.model for part in parts]
    names = [models[0].input_names, results or models[-1].output_names]
    return ComposedCalls(parts, *names, given, HERE, otherwise)


@pytest.fixture
def played(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Inductor, played by the graph that it is given."""
    graphs: list[Any] = []

    def compiled(graph: Any, given: Any) -> Any:
        graphs.append(graph)
        return graph.forward

    monkeypatch.setattr(inductor, "compile_by_inductor", compiled)
    return graphs


def in_numpy(each: Model, x: Any) -> Any:
    from taso_mirage.meanings.reals import REALS

    known = {n: each.weights[n.attr("name")].numpy() for n in each.nodes() if n.op == "weight"}
    found = interpret(each.graph.outputs, REALS, {**known, each.graph.inputs[0]: x.numpy()}, sizes={"rows": len(x)})
    return [torch.from_numpy(np.array(found[o])) for o in each.graph.outputs]


def test_a_kernel_is_one_operator(kerneled: Any, played: list[Any]) -> None:
    before, after, launched = kerneled
    x = torch.randn(ROWS, WIDTH)
    made = calls([OptimizedPart(after, {"kernel_0f": {"the": "record"}}, CUDA)], x)
    for _ in range(2):
        torch.testing.assert_close(made([x]), in_numpy(before, x))
    assert launched.calls == 3  # one of the compilation
    assert launched.shapes == [[(ROWS, WIDTH), (WIDTH,)]]
    (graph,) = played
    assert [str(n.target) for n in graph.graph.nodes].count("taso_mirage.kernel.default") == 1
    assert sum(n.op == "placeholder" for n in graph.graph.nodes) == 3  # weights are arguments


@pytest.mark.usefixtures("played")
def test_kernels_are_let_go_with_what_runs_them(kerneled: Any) -> None:
    _, after, _ = kerneled
    there = len(PLACED)
    made = calls([OptimizedPart(after, {"kernel_0f": {"the": "record"}}, CUDA)], torch.ones(ROWS, WIDTH))
    assert len(PLACED) == there + 1
    del made
    gc.collect()
    assert len(PLACED) == there


def test_what_has_no_form_is_refused(kerneled: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    _, after, _ = kerneled
    x = torch.ones(ROWS, WIDTH)
    with pytest.raises(Unsupported, match="taso_mirage::kernel_0f has no form in PyTorch"):
        calls([OptimizedPart(after, {"kernel_12": {}}, CUDA)], x)
    monkeypatch.undo()
    with pytest.raises(Unsupported, match="kernels for cpu are not launched on tensors"):
        calls([OptimizedPart(after, {"kernel_0f": {}}, CPU)], x)


def of(*outputs: Node) -> Model:
    inputs = [n for n in Graph((), outputs) if n.op == "input"]
    return standalone(Graph(tuple(inputs), outputs), {"": 20})


@pytest.mark.usefixtures("played")
def test_results_share_memory_with_nothing() -> None:
    x = variable("x", Tensor("float32", (4, 3)))
    turned = term("transpose", x, perm=(1, 0))
    made = calls(
        [OptimizedPart(of(term("reshape", x, shape=(12,)), x, turned, term("exp", x)), {}, CPU)], torch.eye(4)[:, :3]
    )
    given = torch.eye(4)[:, :3].contiguous()
    found = made([given])
    torch.testing.assert_close(found, [given.reshape(12), given, given.T, given.exp()])
    assert len({each.untyped_storage().data_ptr() for each in (given, *found)}) == 5
    assert all(each.is_contiguous() for each in found)


@pytest.mark.usefixtures("played")
def test_parts_follow_each_other() -> None:
    x, y = (variable(name, Tensor("float32", (symbol("n"), 3))) for name in "xy")
    first = of(term("exp", x), term("neg", x))
    second = of(term("add", y, x))
    names = dict(zip(first.output_names, "ya", strict=True))
    first = replace(first, output_names=tuple(names.values()))
    made = calls(
        [OptimizedPart(first, {}, CPU), OptimizedPart(second, {}, CPU)],
        torch.ones(2, 3),
        results=("a", *second.output_names),
    )
    given = torch.randn(2, 3)
    torch.testing.assert_close(made([given]), [-given, given.exp() + given])


@pytest.mark.usefixtures("played")
def test_another_size_runs_otherwise_and_other_strides_are_copied() -> None:
    x = variable("x", Tensor("float32", (symbol("n"), 3)))
    made = calls([OptimizedPart(of(term("exp", x)), {}, CPU)], torch.ones(3, 3), otherwise=lambda given: ["otherwise"])
    assert made([torch.ones(4, 3)]) == ["otherwise"]
    codes = []
    made._calls = lambda given: codes.append(given[0].stride()) or [given[0].exp()]
    given = torch.randn(3, 3)
    torch.testing.assert_close(made([given.T]), [given.T.exp()])
    assert codes == [(3, 1)]


@pytest.mark.usefixtures("played")
@pytest.mark.parametrize("first", [torch.ones(1, 3).expand(4, 3), torch.ones(6).unfold(0, 3, 1)])
def test_elements_that_share_memory_are_no_layout(first: Any) -> None:
    """No other tensor could be copied into such a layout."""
    made = calls([OptimizedPart(of(term("exp", variable("x", Tensor("float32", (4, 3))))), {}, CPU)], first)
    for given in (first, torch.randn(4, 3), torch.randn(3, 4).T):
        torch.testing.assert_close(made([given]), [given.exp()])


@pytest.mark.parametrize(("records", "unfused", "wanted"), [(1, "b", [1, 0]), (1, "a", [1, 0]), (0, None, [0])])
def test_what_was_optimized_is_compiled_with_kernels_and_without(
    records: int, unfused: str | None, wanted: list[int]
) -> None:
    x = variable("x", Tensor("float32", (3,)))
    models = {"a": of(term("exp", x)), "b": of(term("neg", x))}
    made = {"model": models["b" if unfused is None or records else "a"], "unfused": models.get(unfused or "")}
    result = SimpleNamespace(original=models["a"], records=dict.fromkeys(range(records)), target=CUDA, **made)
    same = SimpleNamespace(original=models["a"], model=models["a"], records={}, unfused=None, target=CUDA)
    assert [[len(part.records) for part in parts] for parts in candidates([result, same])] == [[n, 0] for n in wanted]


@pytest.mark.parametrize(
    ("rounded", "of_products", "of_convolutions"),
    [((), 2, 2), (("Conv",), 0, 2), (("MatMul",), 2, 0), (("Conv", "MatMul"), 2, 2)],
)
def test_nothing_is_rounded_that_was_not(
    rounded: tuple[str, ...], of_products: int, of_convolutions: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A product written as a convolution, and the other way round, with a kernel and without."""
    monkeypatch.setattr(inductor, "rounded_now", lambda operators: operators.intersection(rounded))
    x, w, k = (variable(n, Tensor("float32", s)) for n, s in (("x", (2, 4, 6)), ("w", (5, 4)), ("k", (5, 4, 1))))
    attrs: dict[str, Any] = {"strides": (1,), "pads": (0, 0), "dilations": (1,), "group": 1}
    product, convolution = of(term("matmul", w, x)), of(term("conv", x, k, **attrs))
    for before, after, wanted in ((product, convolution, of_products), (convolution, product, of_convolutions)):
        result = SimpleNamespace(original=before, model=after, unfused=after, records={"a": {}}, target=CUDA)
        assert len(list(candidates([result]))) == wanted
        same = SimpleNamespace(original=before, model=before, unfused=before, records={"a": {}}, target=CUDA)
        assert len(list(candidates([same]))) == 2


# ---------------------------------------------------------------- the choice


class Choice:
    """The races of programs: `answers` are how many times as long the first way takes, in their
    order."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *answers: float | None) -> None:
        self.left, self.graphs = list(answers), list[Any]()
        self.wrong = 0.0
        self.calls = 0
        monkeypatch.setattr(program, "COMPOSED_ON", frozenset(("cpu",)))
        monkeypatch.setattr(program, "both_short", lambda *_: False)
        monkeypatch.setattr(program, "slower", self.race)
        monkeypatch.setattr(ways.Fallback, "code_for", lambda *_: None)
        monkeypatch.setattr(inductor, "compile_by_inductor", self.compiled)
        monkeypatch.setattr(comparison, "SHORT", 0.0)

    def compiled(self, graph: Any, given: Any) -> Any:
        self.graphs.append(graph)
        torch.rand(1)  # it tunes

        def code(*given: Any) -> Any:
            self.calls += 1
            return [each + self.wrong for each in graph.forward(*given)]

        return code

    def race(self, ours: Callable[[], Any], theirs: Callable[[], Any], cuda: bool) -> float | None:
        ours()
        theirs()
        return self.left.pop(0)


class Summed(torch.nn.Module):  # type: ignore[misc]
    """An equation makes one column of its product."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(256, 1024)

    def forward(self, x: Any) -> Any:
        return self.layer(x).sum(1, keepdim=True).sigmoid()


X = torch.linspace(-1, 1, 64 * 256).reshape(64, 256)


def compiled(module: Any, x: Any = X, **options: Any) -> tuple[Callable[..., Any], CapturedGraph]:
    found: list[CapturedGraph] = []

    def kept(captured: Any, example: Any) -> CapturedGraph:
        found.append(CapturedGraph(captured, {"budget": 3, "kernels": "off", "fallback": "inductor", **options}))
        return found[-1]

    made = torch.compile(module, backend=kept)
    with torch.no_grad():
        made(x)
    assert all(each.changed for each in found[0].results)
    return made, found[0]


def same(made: Any, module: Any, x: Any = X) -> None:
    with torch.no_grad():
        torch.testing.assert_close(made(x), module(x), rtol=1e-4, atol=1e-4)


@pytest.mark.sampled(2)
def test_the_faster_one_runs_and_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    choice, module = Choice(monkeypatch, 1.5, None), Summed()
    state = torch.get_rng_state()
    made, graph = compiled(module)

    assert torch.equal(state, torch.get_rng_state())
    (way,) = graph.ways
    assert (way.by, way.reason) == (ways.COMPOSED, "ONNX Runtime takes 1.50 times as long")
    (traced,) = choice.graphs
    made_of = [n.meta["val"].numel() for n in traced.graph.nodes if n.op == "call_function"]
    assert max(made_of) in (64, 256)  # one column of results, or of weights where they are turned
    before = choice.calls
    same(made, module)
    assert choice.calls == before + 1
    with torch.no_grad():
        module.layer.weight.mul_(2)
    choice.left = [1.5, None]
    same(made, module)  # compiled again
    assert len(choice.graphs) == 2


@pytest.mark.parametrize("why", ["slower", "wrong", "refused"])
def test_another_one_does_not_run(monkeypatch: pytest.MonkeyPatch, why: str) -> None:
    choice, module = Choice(monkeypatch, None, None), Summed()
    if why == "wrong":
        choice.wrong, choice.left = 0.01, [None]
    if why == "refused":
        monkeypatch.setattr(inductor, "TorchMeaning", lambda device: Refusing(device))
        choice.left = [None]
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        made, graph = compiled(module)
    assert [way.by for way in graph.ways] == [ways.OURS]
    before = choice.calls
    same(made, module)
    assert choice.calls == before
    assert not choice.left


class Refusing(TorchMeaning):
    def map(self, fn: Any, *xs: Any) -> Any:
        raise Unsupported("no")


def test_where_inductor_fails_the_session_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    choice, module = Choice(monkeypatch, None), Summed()

    def failing(graph: Any, given: Any) -> Any:
        raise RuntimeError("no compiler")

    monkeypatch.setattr(inductor, "compile_by_inductor", failing)
    with pytest.warns(UserWarning, match="does not compile an optimized graph: RuntimeError: no compiler"):
        made, graph = compiled(module)
    same(made, module)
    assert [way.by for way in graph.ways] == [ways.OURS]
    assert not choice.left


def test_it_is_raced_with_eager_and_with_inductor_in_the_sessions_place(monkeypatch: pytest.MonkeyPatch) -> None:
    choice, module = Choice(monkeypatch, 1.5, 1.2), Summed()
    with pytest.warns(UserWarning, match=r"1\.20 times as long here"):
        made, graph = compiled(module)
    assert [way.by for way in graph.ways] == ["eager"]
    assert choice.calls == 4  # compiled, compared, and raced twice
    same(made, module)


def test_at_other_sizes_the_session_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    choice, module = Choice(monkeypatch, None, 1.5, None), Summed()
    x = X.clone()
    torch._dynamo.mark_dynamic(x, 0)
    made, graph = compiled(module, x)
    assert [way.by for way in graph.ways] == [ways.COMPOSED]
    before = choice.calls
    for rows in (3, 64, 7):
        same(made, module, X[:rows])
    assert choice.calls == before + 1
    assert len(graph.results) == 1


@pytest.mark.parametrize("options", [{"fallback": "eager"}, {}])
def test_it_is_tried_where_inductor_is(monkeypatch: pytest.MonkeyPatch, options: dict[str, Any]) -> None:
    choice = Choice(monkeypatch, None)
    if not options:
        monkeypatch.setattr(program, "COMPOSED_ON", frozenset(("cuda",)))
    _, graph = compiled(Summed(), **options)
    assert not choice.graphs
    assert [way.by for way in graph.ways] == [ways.OURS]


# ---------------------------------------------------------------- Inductor itself


@pytest.fixture
def cpp_compiler() -> None:
    if shutil.which("g++") is None:
        pytest.skip("needs a C++ compiler")


@pytest.mark.usefixtures("cpp_compiler")
def test_inductor_compiles_it_around_a_kernel(kerneled: Any) -> None:
    before, after, launched = kerneled
    x = torch.randn(ROWS, WIDTH)
    made = calls([OptimizedPart(after, {"kernel_0f": {"the": "record"}}, CUDA)], x)
    ran = launched.calls
    for each in (x, x * 2, torch.randn(WIDTH, ROWS).T):
        torch.testing.assert_close(made([each]), in_numpy(before, each))
    assert launched.calls == ran + 3


@pytest.mark.usefixtures("cpp_compiler")
def test_a_graph_runs_by_its_code(monkeypatch: pytest.MonkeyPatch) -> None:
    code = inductor.compile_by_inductor
    choice, module = Choice(monkeypatch, 1.5, None), Summed()
    monkeypatch.setattr(inductor, "compile_by_inductor", code)
    made, graph = compiled(module)
    assert [way.by for way in graph.ways] == [ways.COMPOSED]
    for x in (X, X * 3):
        same(made, module, x)
    assert not choice.left
