"""The peers of the convolutions in `bench/kernels_h100.py` compute its goals."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

from taso_mirage.forms.base.form import in_operators
from taso_mirage.meanings.reals import EXACT
from taso_mirage.operators.interpret import interpret

torch = pytest.importorskip("torch")


@pytest.fixture(scope="module")
def bench() -> ModuleType:
    sys.path.insert(0, str(Path(__file__).parents[2] / "bench"))
    return importlib.import_module("kernels_h100")


@pytest.mark.parametrize("group", [2, 6])
def test_every_peer_computes_the_goal(group: int, bench: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    peer = bench.convolution_peer
    graph = peer.goal(side=5, channels=6, group=group, batch=2)
    rng = np.random.default_rng(group)
    given = [rng.normal(size=[int(n) for n in x.shape]) for x in graph.inputs]
    (written,) = in_operators(graph.outputs)
    wanted = interpret([written], EXACT, dict(zip(graph.inputs, given, strict=True)))[written]
    tensors = [torch.tensor(each) for each in given]
    np.testing.assert_allclose(bench.EAGER[peer.NAME](*tensors), wanted, atol=1e-12)
    monkeypatch.setattr(torch, "compile", lambda function, **options: function)
    found = list(peer.kinds(peer.NAME, [tensors]))
    assert len(found) == 4
    for _, call, ((x, w, b),) in found:
        np.testing.assert_allclose(call(x, w, b), wanted, atol=1e-12)
    assert found[0][2][0][0].is_contiguous(memory_format=torch.channels_last)
    assert list(peer.kinds("gqa", [tensors])) == []


def test_rows_have_programs_without_a_search(bench: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bench, "superoptimize", None)
    rows = [row for row in bench.ROWS if row.name == bench.convolution_peer.NAME]
    assert len(rows) == 5
    for row in rows:
        programs = bench.searched(bench.goal(row), 50)
        assert len(programs) >= 6
        assert all("implicit_gemm" in program.source for program in programs)
