"""Models in parts that round operands to TF32 and that do not, as PyTorch's settings say."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import onnx_ir as ir
import pytest

torch = pytest.importorskip("torch", reason="the extra `torch` is not installed")
pytest.importorskip("onnxscript")

import taso_mirage  # noqa: E402
from taso_mirage.errors import Unsupported  # noqa: E402
from taso_mirage.search.config import Config  # noqa: E402
from taso_mirage.search.passes import multiplies_alike  # noqa: E402
from taso_mirage.targets.cuda import session as cuda_session  # noqa: E402
from taso_mirage.targets.cuda.target import CUDA, CUDA_TF32  # noqa: E402
from taso_mirage.torch import cuda_graphs, program, sessions  # noqa: E402
from taso_mirage.torch.backend import CapturedGraph  # noqa: E402
from taso_mirage.torch.calls import BoundCalls, OpenSession  # noqa: E402
from taso_mirage.torch.comparison import check_equal  # noqa: E402
from taso_mirage.torch.export import to_onnx  # noqa: E402
from taso_mirage.torch.precision import MOST, PrecisionPart, parts_of, rounded_now, rounding_operators  # noqa: E402
from taso_mirage.torch.sessions import Sessions  # noqa: E402

pytestmark = [
    pytest.mark.sampled(2),
    pytest.mark.filterwarnings("default::DeprecationWarning", "default::FutureWarning"),
    pytest.mark.usefixtures("exporting", "compiled_anew"),
]
N = torch.nn
CONVOLUTIONS = frozenset(("Conv", "ConvTranspose"))
PRODUCTS = frozenset(("Attention", "Einsum", "Gemm", "MatMul"))
CPU = torch.device("cpu")
TORCH_SETTINGS = torch.backends.cudnn.conv, torch.backends.cudnn.rnn, torch.backends.cuda.matmul


@pytest.fixture(autouse=True)
def settings_kept() -> Iterator[None]:
    """The settings of PyTorch that a test changes are put back."""
    before, older = [each.fp32_precision for each in TORCH_SETTINGS], torch.backends.cudnn.allow_tf32
    yield
    torch.backends.cudnn.allow_tf32 = older
    for each, value in zip(TORCH_SETTINGS, before, strict=True):
        each.fp32_precision = value


class Classifier(N.Module):
    """Convolutions with a product at the end; 1x1 convolutions are no products."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.squeeze, self.excite = N.Conv2d(3, 8, 3), N.Conv2d(8, 4, 1), N.Conv2d(4, 8, 1)
        self.last = N.Linear(8, 5)

    def forward(self, x: Any) -> Any:
        x = self.first(x).relu()
        x = x * self.excite(self.squeeze(x.mean((2, 3), keepdim=True)).relu()).sigmoid()
        return self.last(x.mean((2, 3)))


class Patches(N.Module):
    """One convolution, then products; the value between is used twice."""

    def __init__(self) -> None:
        super().__init__()
        self.cut, self.layer = N.Conv2d(3, 8, 4, 4), N.TransformerEncoderLayer(8, 2, 16, batch_first=True)
        self.places = N.Parameter(torch.randn(1, 4, 8))

    def forward(self, x: Any) -> Any:
        x = self.cut(x).flatten(2).transpose(1, 2)
        return self.layer(x + self.places), x.argmax(-1)


class InTurn(N.Module):
    def __init__(self, count: int) -> None:
        super().__init__()
        self.pairs = N.ModuleList(N.Sequential(N.Conv1d(4, 4, 1), N.Linear(6, 6)) for _ in range(count))

    def forward(self, x: Any) -> Any:
        for pair in self.pairs:
            x = pair(x) + x
        return x


class Beside(N.Module):
    """A product and a convolution that do not depend on each other, and results of both."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.other = N.Conv1d(4, 4, 3, padding=1), N.Linear(6, 6)

    def forward(self, x: Any) -> Any:
        a, b = self.one(x * 2), self.other(x * 2)
        return a, b, a + b


IMAGE = torch.linspace(-1, 1, 2 * 3 * 8 * 8).reshape(2, 3, 8, 8)
ROWS = torch.linspace(-1, 1, 48).reshape(2, 4, 6)
MODELS: dict[str, tuple[Callable[[], Any], Any, list[bool]]] = {
    "a classifier": (Classifier, IMAGE, [True, False]),
    "patches": (Patches, IMAGE, [True, False]),
    "beside": (Beside, ROWS, [True, False]),
    "twice in turn": (lambda: InTurn(2), ROWS, [True, False, True, False]),
    "often in turn": (lambda: InTurn(3), ROWS, [False]),
    "convolutions alone": (lambda: N.Sequential(N.Conv2d(3, 4, 3), N.ReLU()), IMAGE, [True]),
    "products alone": (lambda: N.Linear(6, 3), ROWS, [False]),
    "neither": (N.Softmax, ROWS, [False]),
}


def exported(module: Any, x: Any, free: frozenset[int] = frozenset()) -> ir.Model:
    return to_onnx(module.eval(), [x], [free]).model


@pytest.mark.parametrize("name", MODELS)
def test_each_part_rounds_all_that_pytorch_rounds_and_nothing_else(name: str) -> None:
    build, x, regimes = MODELS[name]
    model = exported(build(), x)
    for rounded, wanted in ((CONVOLUTIONS, regimes), (PRODUCTS, None), (CONVOLUTIONS | PRODUCTS, None), ((), [False])):
        parts = parts_of(model, rounded)
        assert len(parts) <= MOST
        assert wanted is None or [part.tf32 for part in parts] == wanted
        for part in parts:
            inside = rounding_operators(part.model)
            assert inside <= set(rounded) if part.tf32 else len(parts) == 1 or inside.isdisjoint(rounded)
    assert len(parts_of(model, CONVOLUTIONS | PRODUCTS)) == 1


def test_half_precision_is_not_cut() -> None:
    model = exported(Classifier().half(), IMAGE.half())
    assert not rounding_operators(model)
    assert [part.tf32 for part in parts_of(model, CONVOLUTIONS)] == [False]


def test_what_has_bodies_or_functions_is_not_cut() -> None:
    """The operators inside are known."""
    inner = ir.Graph([], [], nodes=[], name="body")
    x, w = (ir.val(name, ir.DataType.FLOAT, (2, 2)) for name in "xw")
    product = ir.node("MatMul", [x, w])
    inner.append(product)
    inner.outputs.append(product.outputs[0])
    condition = ir.val("c", ir.DataType.BOOL, ())
    branch = ir.node(
        "If", [condition], {"then_branch": inner, "else_branch": inner.clone(allow_outer_scope_values=True)}
    )
    image = ir.val("image", ir.DataType.FLOAT, (1, 1, 4, 4))
    conv = ir.node("Conv", [image, ir.val("k", ir.DataType.FLOAT, (1, 1, 3, 3))])
    graph = ir.Graph(
        [x, w, condition, *conv.inputs], [branch.outputs[0], conv.outputs[0]], nodes=[branch, conv], name="g"
    )
    model = ir.Model(graph, ir_version=10)
    assert rounding_operators(model) == {"Conv", "MatMul"}
    assert [part.tf32 for part in parts_of(model, CONVOLUTIONS)] == [False]


def opened(part: PrecisionPart, folder: Any) -> OpenSession:
    """A session that says to be on a GPU alone."""
    path = folder / f"{'-'.join(part.results)}.onnx"
    ir.save(part.model, path)
    return OpenSession(taso_mirage.session(path), alone=True)


def chained(model: ir.Model, folder: Any) -> BoundCalls:
    names = [[str(value.name) for value in each] for each in (model.graph.inputs, model.graph.outputs)]
    parts = [opened(part, folder) for part in parts_of(model, CONVOLUTIONS)]
    return BoundCalls(parts, *names, CPU, owning=True)


@pytest.mark.parametrize(
    ("name", "faster"),
    [
        *((name, True) for name in ("a classifier", "patches", "beside", "twice in turn")),
        ("a classifier", False),
        *(pytest.param(name, False, marks=pytest.mark.slow) for name in ("patches", "beside", "twice in turn")),
    ],
)
def test_parts_run_as_one(name: str, faster: bool, tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """The parts run as eager does, at every size, captured and not: the results of one part lie
    where the next one reads them, and results of earlier calls stay as they are."""
    seconds = lambda call, cuda: float(isinstance(call.func, cuda_graphs.CapturedRun) != faster)  # noqa: E731
    monkeypatch.setattr(cuda_graphs, "seconds", seconds)
    build, x, _ = MODELS[name]
    module = build().eval()
    calls = chained(exported(module, x, frozenset({0})), tmp_path)
    assert calls._whole
    kept = []
    with torch.no_grad():
        for i in range(9):
            given = torch.cat([x * (i + 1)] * (1 + i % 2))
            wanted = module(given)
            kept.append((calls([given]), wanted if isinstance(wanted, tuple) else (wanted,)))
    for found, wanted in kept:
        torch.testing.assert_close(list(found), list(wanted), atol=1e-5, rtol=1e-5)
    known = calls._graphs._known()
    assert len(known) == 2
    assert all(bool(free) == faster for free in known.values())


def test_nothing_is_copied_between_parts(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    calls = chained(exported(Classifier(), IMAGE), tmp_path)
    first = calls._parts[0]
    read, written = [], []
    bound, there = type(first)._bind, type(first)._there
    monkeypatch.setattr(
        type(first),
        "_bind",
        lambda self, *given: written.append(found := bound(self, *given)) or found,  # type: ignore[func-returns-value]
    )
    monkeypatch.setattr(
        type(first),
        "_there",
        lambda self, *given: read.append(found := there(self, *given)) or found,  # type: ignore[func-returns-value]
    )
    calls._plain([IMAGE])
    assert [each.data_ptr() for each in written[0].values()] == [each.data_ptr() for each in read[1:]]


# ---------------------------------------------------------------- PyTorch's settings


def test_operands_are_rounded_where_pytorch_rounds_them() -> None:
    names = frozenset(("Conv", "LSTM", "Gemm", "Relu"))
    kinds = dict(zip(TORCH_SETTINGS, ("Conv", "LSTM", "Gemm"), strict=True))
    for wanted in range(8):  # settings that differ are an error where PyTorch's older names are read
        for i, each in enumerate(TORCH_SETTINGS):
            each.fp32_precision = "tf32" if wanted >> i & 1 else "ieee"
        assert rounded_now(names) == {kind for i, kind in enumerate(kinds.values()) if wanted >> i & 1}
    assert rounded_now(frozenset(("Relu",))) == frozenset()


def test_without_cudnn_convolutions_are_products() -> None:
    conv, _, products = TORCH_SETTINGS
    conv.fp32_precision, products.fp32_precision = "tf32", "ieee"
    with torch.backends.cudnn.flags(enabled=False, allow_tf32=None, fp32_precision=None):
        assert rounded_now(frozenset(("Conv",))) == frozenset()
        products.fp32_precision = "tf32"
        assert rounded_now(frozenset(("Conv",))) == {"Conv"}


class Regimes:
    """The sessions that were opened on a processor, as if it rounded operands; `off` is how far off
    a result is then, relatively."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, off: float = 0.0) -> None:
        self.opened: list[bool] = []
        plain = Sessions._open

        def kept(made: Sessions, path: Any, tf32: bool) -> OpenSession:
            self.opened.append(tf32)
            found = plain(made, path, False)
            return OpenSession(Off(found.session, off)) if tf32 and off else found

        monkeypatch.setattr(Sessions, "_open", kept)
        monkeypatch.setattr(program, "ROUNDS", frozenset(("cpu",)))


class Off:
    """A session whose results are off by so much."""

    def __init__(self, session: Any, off: float) -> None:
        self._session, self._off = session, off

    def __getattr__(self, name: str) -> Any:
        return getattr(self._session, name)

    def run(self, names: Any, inputs: Any) -> Any:
        return [each * (1 + self._off) for each in self._session.run(names, inputs)]


def compiled(module: Any, **options: Any) -> tuple[Any, list[CapturedGraph]]:
    graphs: list[CapturedGraph] = []

    def kept(graph: Any, example: Any) -> CapturedGraph:
        graphs.append(CapturedGraph(graph, {"measure": False, "budget": 1, **options}))
        return graphs[-1]

    return torch.compile(module, backend=kept), graphs


def test_a_graph_runs_in_parts_and_anew_where_settings_change(monkeypatch: pytest.MonkeyPatch) -> None:
    regimes, module = Regimes(monkeypatch), Classifier().eval()
    ours, graphs = compiled(module)
    with torch.no_grad():
        for setting, wanted in ((True, [True, False]), (False, [False]), (True, [])):
            torch.backends.cudnn.allow_tf32 = setting
            regimes.opened.clear()
            for _ in range(2):
                torch.testing.assert_close(ours(IMAGE), module(IMAGE))
            assert regimes.opened == wanted
    assert len(graphs) == 1
    assert len(graphs[0].results) == 3


def test_what_eager_computes_more_closely_is_not_rounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Half of the digits are right, but eager has more."""
    regimes, module = Regimes(monkeypatch, off=2e-4), N.Sequential(N.Conv2d(3, 4, 3), N.ReLU()).eval()
    ours, graphs = compiled(module)
    with torch.no_grad():
        torch.testing.assert_close(ours(IMAGE), module(IMAGE))
        torch.testing.assert_close(ours(IMAGE * 2), module(IMAGE * 2))
    assert regimes.opened == [True, False]
    assert len(graphs[0].results) == 1


def test_rounded_results_are_as_near_to_float64_as_those_of_eager() -> None:
    exact = torch.randn(100, dtype=torch.float64)
    exactly = lambda: [exact]  # noqa: E731
    plain, coarse = exact.float(), (exact * (1 + 3e-4 * torch.rand(100))).float()
    ours = (exact * (1 - 3e-4 * torch.rand(100))).float()
    check_equal([ours], [plain], exactly)
    check_equal([ours], [coarse], exactly, True)
    check_equal([plain], [coarse], exactly, True)
    check_equal([plain * (1 + 1e-6)], [plain], exactly, True)
    with pytest.raises(Unsupported):
        check_equal([ours], [plain], exactly, True)
    with pytest.raises(Unsupported):
        check_equal([ours], [plain], lambda: None, True)


@pytest.mark.parametrize("gain", [2.0, None])
def test_parts_are_taken_where_they_are_faster(gain: float | None, monkeypatch: pytest.MonkeyPatch) -> None:
    regimes, calls = Regimes(monkeypatch), []

    def raced(one: Callable[[], Any], several: Callable[[], Any], cuda: bool) -> float | None:
        calls.append((one()[0], several()[0], cuda))
        return gain

    monkeypatch.setattr(sessions, "slower", raced)
    made = Sessions(exported(Classifier(), IMAGE), CPU, {})
    found = made.parts(CONVOLUTIONS, [IMAGE])
    assert [part.tf32 for part in found] == ([True, False] if gain else [False])
    assert regimes.opened == [False, True, False]
    ((one, several, cuda),) = calls
    torch.testing.assert_close(one, several)
    assert not cuda


def test_times_are_rounded_and_comparisons_are_not(monkeypatch: pytest.MonkeyPatch) -> None:
    opened: list[dict[str, str]] = []

    def session(source: Any, providers: Any, *rest: Any) -> str:
        opened.append(providers[0][1])
        return f"session {len(opened)}"

    monkeypatch.setattr(cuda_session, "inference_session", session)
    monkeypatch.setattr(cuda_session, "load_libraries", lambda: None)
    monkeypatch.setattr(cuda_session, "check_provider", lambda *_: None)
    monkeypatch.setattr(cuda_session, "run_session", lambda session, *_: session)
    monkeypatch.setattr(cuda_session, "_Bound", lambda session, *_: session)
    made = CUDA_TF32.open(b"", False, {})
    assert [each["use_tf32"] for each in opened] == ["1", "0"]
    assert (made.bound({}), made.run({})) == ("session 1", "session 2")
    CUDA.open(b"", False, {})
    assert [each["use_tf32"] for each in opened] == ["1", "0", "0"]
    assert {each.plain for each in CUDA_TF32.variants} == {CUDA_TF32}
    assert {each.plain for each in CUDA.variants} == {CUDA}


def test_no_rule_makes_a_convolution_of_a_pool_where_operands_are_rounded() -> None:
    kept, every = (Config(target=each).applied for each in (CUDA_TF32, CUDA))
    gone = {each.name for each in every} - {each.name for each in kept}
    assert {"average_pool.5", "taso.matmul_to_operand.63ed"} <= gone
    assert all(map(multiplies_alike, kept))
    assert len(gone) < 20


# ---------------------------------------------------------------- on a GPU


on_a_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")


class Features(N.Module):
    """A network of convolutions that a GPU surely rounds, its features, and a product of them."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = N.Sequential(*(N.Sequential(N.Conv2d(64, 64, 3, padding=1), N.ReLU()) for _ in range(3)))
        self.last = N.Linear(64, 1000)

    def forward(self, x: Any) -> Any:
        features = self.layers(x).mean((2, 3))
        return features, self.last(features)


@pytest.fixture
def regimes(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """The TF32 flags of the sessions that were opened."""
    found: list[bool] = []
    plain = Sessions._open
    monkeypatch.setattr(Sessions, "_open", lambda made, path, tf32: found.append(tf32) or plain(made, path, tf32))  # type: ignore[func-returns-value]
    return found


def distance(found: Any, exact: Any) -> float:
    """The distance relative to the largest number."""
    return float((found.double() - exact).abs().max() / exact.abs().max())


@on_a_gpu
@pytest.mark.parametrize("rounds", [True, False])
def test_a_gpu_rounds_what_pytorch_rounds(rounds: bool, regimes: list[bool]) -> None:
    torch.backends.cudnn.allow_tf32 = rounds
    module = Features().eval().cuda()
    exactly = copy.deepcopy(module).double()
    ours, graphs = compiled(module)
    with torch.no_grad():
        for size in (8, 8, 8, 8, 3, 3, 3):
            x = torch.randn(size, 64, 56, 56, device="cuda")
            features, found = ours(x)
            off = distance(features, exactly(x.double())[0])
            assert (1e-6 < off < 1e-2) if rounds else off < 1e-5
            assert distance(found, exactly.last(features.double())) < 1e-6
    assert graphs[0].results
    assert set(regimes) == ({True, False} if rounds else {False})
    assert all(program._calls._whole for program in graphs[0]._programs)


@on_a_gpu
def test_parts_on_a_gpu_in_threads_with_streams() -> None:
    module = Features().eval().cuda()
    ours, graphs = compiled(module)

    def calls(number: int) -> list[tuple[Any, Any]]:
        """The results of some calls; nothing else is done on the GPU, since requests for memory may
        be refused while another thread captures."""
        found = []
        with torch.no_grad(), torch.cuda.stream(torch.cuda.Stream()):
            for x, wanted in given[number::3]:
                found.append((ours(x), wanted))
        return found

    with torch.no_grad():
        inputs = [torch.full((4, 64, 16, 16), 0.1 * i, device="cuda") for i in range(90)]
        given = [(x, module(x)) for x in inputs]
        ours(inputs[0])
    torch.cuda.synchronize()
    with ThreadPoolExecutor(3) as threads:
        found = [each for several in threads.map(calls, range(3)) for each in several]
    torch.cuda.synchronize()
    for ours_of, wanted in found:
        torch.testing.assert_close(list(ours_of), list(wanted), atol=5e-3, rtol=5e-3)
    assert graphs[0].results
    (program,) = graphs[0]._programs
    assert program._calls._graphs.count() == 1  # those of the threads went with them


@on_a_gpu
def test_a_gpu_reads_what_begins_anywhere_and_stays_the_current_one(monkeypatch: pytest.MonkeyPatch) -> None:
    module = N.Sequential(N.Linear(7, 64), N.GELU(), N.Linear(64, 64)).eval().cuda()
    monkeypatch.setattr(program, "slower", lambda *args: None)  # eager PyTorch may be faster
    ours, graphs = compiled(module, measure=True, kernels="search", budget=20)
    rows = torch.randn(9, 7, device="cuda")
    with torch.no_grad():
        for first in (0, 1, 2, 3):
            given = rows[first : first + 5]  # begins at a multiple of 28 bytes
            torch.testing.assert_close(ours(given), module(given), atol=1e-5, rtol=1e-5)
        if torch.cuda.device_count() > 1:
            with torch.cuda.device(1):
                ours(rows[:5])
                assert torch.cuda.current_device() == 1
    assert graphs[0].results
