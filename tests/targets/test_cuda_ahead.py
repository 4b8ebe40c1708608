"""The back end of a GPU, which is there from the beginning: it starts beside the first stages, ends
with the command however that ends, and multiplies matrices in float64 (PyTorch on the CPU plays
it)."""

from __future__ import annotations

import math
import threading
import time
import warnings
from dataclasses import replace
from typing import Any

import mugraphs
import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed")

from taso_mirage.devices.cuda.device import H100  # noqa: E402
from taso_mirage.errors import RuntimeUnavailable  # noqa: E402
from taso_mirage.ir.terms import Tensor, variable  # noqa: E402
from taso_mirage.lowering import exact  # noqa: E402
from taso_mirage.lowering.cuda import CudaLowering  # noqa: E402
from taso_mirage.meanings.arrays import CONTRACTING, pairwise_in_parts  # noqa: E402
from taso_mirage.meanings.reals import EXACT  # noqa: E402
from taso_mirage.measure.target import CPU, CUDA, Target  # noqa: E402
from taso_mirage.operators.interpret import interpret  # noqa: E402
from taso_mirage.operators.ops import Ints, term  # noqa: E402
from taso_mirage.pipeline import stages  # noqa: E402
from taso_mirage.pipeline.fuse import searches  # noqa: E402
from taso_mirage.search.config import Config  # noqa: E402


@pytest.fixture
def moved(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The arrays that went to the GPU; any product is large enough."""
    found: list[Any] = []
    monkeypatch.setattr(torch.Tensor, "cuda", lambda tensor: found.append(tensor) or tensor)
    monkeypatch.setattr(exact, "SLOW", 1.0)
    monkeypatch.setattr(exact, "BUSY", 0.0)
    return found


PRODUCT = ("bik", "bkj", "bij")


def operands(dtype: str = "float64") -> tuple[Any, Any]:
    rng = np.random.default_rng(0)
    return rng.normal(size=(3, 5, 8)).astype(dtype), rng.normal(size=(3, 4, 8)).astype(dtype).transpose(0, 2, 1)


def test_large_products_of_float64_are_its(moved: list[Any]) -> None:
    a, b = operands()
    a.flags.writeable = False  # like an array mapped from a file; PyTorch warns of it
    b = b[:, ::-1]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = exact.contracted_on_gpu(a, b, *PRODUCT)
    np.testing.assert_allclose(found, a @ b, rtol=1e-13)
    assert [tuple(each.shape) for each in moved] == [(3, 5, 8), (3, 8, 4)]


def test_an_axis_of_one_element_may_be_turned_round(moved: list[Any]) -> None:
    """numpy calls it contiguous, with a stride below 0, which PyTorch refuses."""
    a, b = (each[:1, :, :] for each in operands())
    found = exact.contracted_on_gpu(a[::-1], b[::-1], *PRODUCT)
    np.testing.assert_allclose(found, a @ b, rtol=1e-13)
    assert len(moved) == 2


@pytest.mark.parametrize("limit", [1 << 31, 24_000, 3_000], ids=["whole", "in parts", "no part is small enough"])
@pytest.mark.parametrize(("group", "strides", "dilations"), [(1, (1, 1), (1, 1)), (2, (2, 1), (1, 2))])
def test_an_image_is_sent_once_for_all_windows(
    group: int, strides: Ints, dilations: Ints, limit: int, moved: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    rng = np.random.default_rng(1)
    x, w = rng.normal(size=(2, 4, 11, 9)), rng.normal(size=(6, 4 // group, 3, 2))
    named = {"strides": strides, "pads": (1, 0, 1, 2), "dilations": dilations, "group": group}
    given = {variable(name, Tensor("float64", array.shape)): array for name, array in (("x", x), ("w", w))}
    graph = (term("conv", *given, **named),)
    wanted = interpret(graph, EXACT, given)[graph[0]]
    monkeypatch.setattr(CONTRACTING, "by", exact.contracted_on_gpu)
    monkeypatch.setattr(exact, "LARGEST", limit)
    np.testing.assert_allclose(interpret(graph, EXACT, given)[graph[0]], wanted, rtol=1e-12, atol=1e-12)
    padded = 2 * 4 * 13 * 11
    assert sum(each.numel() for each in moved) <= (padded + w.size if limit == 1 << 31 else 4 * padded)
    assert moved or limit == 3_000


@pytest.mark.parametrize(("dtype", "limit"), [("float32", "SLOW"), ("int64", "SLOW"), ("float64", "LARGEST")])
def test_others_are_numpys(dtype: str, limit: str, moved: list[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exact, limit, {"SLOW": 1.0, "LARGEST": 8 * (3 * 5 * 8 + 3 * 8 * 4 + 3 * 5 * 4) - 1}[limit])
    a, b = operands(dtype)
    np.testing.assert_array_equal(exact.contracted_on_gpu(a, b, *PRODUCT), a @ b)
    assert not moved


@pytest.mark.parametrize(
    "error",
    [
        torch.OutOfMemoryError("no room"),
        RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling cublasCreate"),
    ],
)
def test_what_has_no_room_there_is_numpys(error: Exception, moved: list[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: Any) -> Any:
        raise error

    monkeypatch.setattr(torch.Tensor, "cuda", full)
    a, b = operands()
    np.testing.assert_array_equal(exact.contracted_on_gpu(a, b, *PRODUCT), a @ b)


def test_a_back_end_multiplies_there_until_it_is_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    made = CudaLowering(H100, "a stand-in", 90)
    monkeypatch.setattr(made.compiler, "start", lambda job: None)
    made.start()
    assert CONTRACTING.by is exact.contracted_on_gpu
    made.close()
    assert CONTRACTING.by is pairwise_in_parts


class Played:
    """A back end that notes its calls, and whose start waits until it may."""

    def __init__(self) -> None:
        self.said: list[str] = []
        self.may, self.closed = threading.Event(), threading.Event()

    def start(self) -> None:
        assert self.may.wait(600)
        self.said.append("start")

    def close(self) -> None:
        self.said.append("close")
        self.closed.set()


@pytest.fixture
def played(monkeypatch: pytest.MonkeyPatch) -> Played:
    found = Played()
    monkeypatch.setattr(stages, "here", lambda target: found)
    return found


def test_it_starts_beside_what_goes_on(played: Played) -> None:
    with stages._backend(Config(kernels="search", target=CUDA)) as found:
        assert found is not None
        assert not found.done()
        played.may.set()
        assert found.result(600) is played
    assert played.said == ["start", "close"]


def test_an_interrupt_while_it_starts_ends_it_too(played: Played) -> None:
    """The interrupt does not wait for the start, after which the back end is closed."""
    with pytest.raises(KeyboardInterrupt), stages._backend(Config(kernels="search", target=CUDA)):
        raise KeyboardInterrupt
    assert played.said == []
    played.may.set()
    assert played.closed.wait(600)
    assert played.said == ["start", "close"]


SHORT = stages.EARLY / 2


@pytest.mark.parametrize(
    ("target", "kernels", "budget"), [(CPU, "search", SHORT), (CPU, "off", 60), (CUDA, "off", 60), (CUDA, "cached", 60)]
)
def test_nothing_starts_where_no_kernels_are_searched(
    target: Target, kernels: str, budget: float, played: Played
) -> None:
    with stages._backend(Config(kernels=kernels, target=target, budget=budget)) as found:
        assert found is None
    assert played.said == []


@pytest.mark.sampled(2)
def test_processes_that_search_start_beside_what_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    """The processes find the kernels that other searches find; on few cores there are none."""
    goals = [(mugraphs.ntrans(dtype=dtype)[1], None) for dtype in ("float16", "float32", "bfloat16")]
    config = Config(kernels="search", target=CUDA, budget=math.inf)
    monkeypatch.setattr(stages, "cores", lambda: 2 * searches.FEW)
    with stages._searchers(config) as few:
        assert few is None
    monkeypatch.setattr(stages, "cores", lambda: 4)
    monkeypatch.setattr(searches, "FEW", 1)
    with stages._searchers(replace(config, kernels="off")) as off:
        assert off is None
    with stages._searchers(config) as ready:
        assert ready is not None
        end = time.monotonic() + 600
        while len(ready._started) < 2 and time.monotonic() < end:
            time.sleep(0.01)
        found = searches.Searches(goals, H100, 100.0, 2, {}, ready)
        assert found.workers is ready
        assert all(found(goal, 100.0, lambda *_: None) for goal, _ in goals)
        assert len(ready._started) == 2
    assert ready._started == []


def test_there_may_be_none(monkeypatch: pytest.MonkeyPatch) -> None:
    def none(target: str) -> Any:
        raise RuntimeUnavailable("no GPU")

    monkeypatch.setattr(stages, "here", none)
    with stages._backend(Config(kernels="search", target=CUDA)) as found:
        assert found is not None
        assert found.result(600) is None


def test_what_goes_wrong_meanwhile_is_what_is_raised(monkeypatch: pytest.MonkeyPatch) -> None:
    """The error of the work in between is raised, not that of the back end, which is no longer
    needed."""

    def broken(target: str) -> Any:
        raise OSError("libtorch.so: file too short")

    monkeypatch.setattr(stages, "here", broken)
    with pytest.raises(ValueError, match="the model"), stages._backend(Config(kernels="search", target=CUDA)):
        raise ValueError("the model")
