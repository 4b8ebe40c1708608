"""Fixtures of all tests: a cost cache of their own, so that no test reads or fills the user's, and
models built once."""

from __future__ import annotations

import gc
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from sampling import pytest_collection_modifyitems, pytest_terminal_summary  # noqa: F401

if TYPE_CHECKING:
    import onnx

    from taso_mirage.report.result import Result

os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")  # before any test imports onnxruntime
os.environ.setdefault("OMP_NUM_THREADS", "1")  # and numpy, or PyTorch: there is a worker for each core
os.environ.setdefault("TORCHINDUCTOR_COMPILE_THREADS", "1")  # else another process imports PyTorch for it
os.environ.setdefault("TORCHINDUCTOR_VEC_ISA_OK", "1")  # else it compiles a program for 10 s, in each process, to ask
ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT))  # for `models`, which is not part of the package
sys.path.insert(1, str(ROOT / "tests" / "harness"))
sys.path += [str(file.parent) for file in sorted({f.parent: f for f in ROOT.glob("tests/*/test_*.py")}.values())]

# Workers, and the processes that tests start, read the bytecode that the first of them has
# compiled, whatever the environment says: to compile it is a third of the time in which a command
# starts, and half of that in which tests are collected.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Iterator[None]:
    """Nothing is collected while tests are: all that is made stays, and a quarter of the time would
    go into visits of it."""
    gc.disable()
    yield
    gc.enable()


def pytest_collection_finish() -> None:
    """Exempt imported and collected objects from garbage collection, which would take a tenth of
    the time to visit them again and again."""
    gc.freeze()
    gc.set_threshold(50_000, 20, 20)


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish() -> None:
    """Garbage is looked for once at the end, and not by pytest and Python again: that takes some
    seconds each, for all that a run has made."""
    gc.collect()
    gc.freeze()


@pytest.fixture(autouse=True, scope="session")
def own_cache(tmp_path_factory: pytest.TempPathFactory, shared: Path) -> Iterator[None]:
    """Compiled libraries and kernels, named by their sources, are the same for all workers."""
    folder = tmp_path_factory.mktemp("cache")
    for name in ("runtime", "cpp"):
        (shared / name).mkdir(exist_ok=True)
        (folder / name).symlink_to(shared / name, target_is_directory=True)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TASO_MIRAGE_CACHE", str(folder))
        yield


@pytest.fixture(autouse=True, scope="session")
def quiet_sessions() -> Iterator[None]:
    """No test asks how fast a model is: threads do not spin and no run waits for them, comparisons
    have few rounds, and a look at the load finds a quiet machine."""
    import quiet

    from taso_mirage.measure import native, session

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(native, "open_session", quiet.open_session)
        patch.setattr(native, "cores_got", quiet.cores_got)
        patch.setattr(native, "SPINNING", 0.0)
        patch.setattr(session, "MOST", 2 * session.ROUNDS)
        yield


@pytest.fixture(autouse=True, scope="session")
def patient_commands() -> Iterator[None]:
    """No test asks how busy the machine is: a command of a small budget does its work."""
    from taso_mirage.system import deadline

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(deadline, "GRACE", 15.0)
        yield


@pytest.fixture(scope="session")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of this run of the tests, the same for all of its workers."""
    own = tmp_path_factory.getbasetemp()
    return own.parent if "PYTEST_XDIST_WORKER" in os.environ else own


def put(content: bytes, path: Path) -> None:
    """A file that other workers may read, or write too."""
    partial = path.with_suffix(f".{os.getpid()}")
    partial.write_bytes(content)
    partial.replace(path)


@pytest.fixture(scope="session")
def layer(shared: Path) -> Path:
    """The first of the seven layers of `models/mini_transformer.onnx`, for tests that a model takes
    less time in."""
    import onnx
    from onnx.utils import Extractor

    path = shared / "layer.onnx"
    if not path.exists():
        whole = onnx.load(ROOT / "models" / "mini_transformer.onnx")
        norms = [node.output[0] for node in whole.graph.node if node.op_type == "LayerNormalization"]
        made = Extractor(whole).extract_model([each.name for each in whole.graph.input], [norms[2]])
        put(made.SerializeToString(), path)
    return path


@pytest.fixture(scope="session")
def mini() -> Result:
    """The result of `models/mini_transformer.onnx`, with its explanation."""
    from taso_mirage.onnx_io import load
    from taso_mirage.pipeline import optimize_model
    from taso_mirage.search.config import Config

    config = Config(budget=120, measure=False, explain=True, partial=False)
    found = optimize_model(load(ROOT / "models" / "mini_transformer.onnx"), config)
    assert found.changed
    return found


@pytest.fixture(scope="session")
def small(shared: Path) -> Callable[..., onnx.ModelProto]:
    """`models.build` in the small configuration; every model is built once in a run of the tests
    and not to be changed."""
    import exporter
    import onnx

    import models

    def built(name: str, **options: Any) -> onnx.ModelProto:
        path = shared / f"{name}{sorted(options.items())}.onnx"
        if not path.exists():
            with exporter.read_once() if name in models.EXPORTED else nullcontext():
                put(models.build(name, **options).SerializeToString(), path)
        return onnx.load(path)

    return cache(built)


@pytest.fixture(scope="module")
def exporting() -> Iterator[None]:
    """For tests that export models from PyTorch, often.

    A graph that stays in eager PyTorch has the garbage collector visit everything, which takes 2 s
    late in a run: objects of earlier tests are not visited again.
    """
    import exporter

    gc.collect()
    gc.freeze()
    with exporter.read_once():
        yield


@pytest.fixture
def compiled_anew() -> Iterator[None]:
    """For tests of `torch.compile`: nothing is compiled before or after, and random numbers begin
    with one seed."""
    import torch

    torch.manual_seed(0)
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()
