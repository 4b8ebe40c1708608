"""FlashInfer's kernels get the inputs of each row in the layout that they document, checked with
stand-ins that compute in PyTorch."""

from __future__ import annotations

import importlib
import sys
from types import ModuleType
from typing import Any

import pytest
from scripts import ROOT

torch = pytest.importorskip("torch")
SHAPES = {
    "gqa": [(2, 8, 4), (2, 4, 32), (2, 32, 4)],
    "qknorm": [(2, 8, 4), (2, 32, 4), (2, 32, 4)],
    "rotary_attention": [(2, 8, 4), (2, 8, 4), (8, 4), (8, 4), (2, 4, 32), (2, 32, 4)],
    "masked_attention": [(2, 8, 4), (2, 4, 32), (2, 32, 4), (8, 32)],
    "long_attention": [(2, 3, 1, 4), (2, 1, 4, 32), (2, 1, 32, 4)],
    "latent_attention": [(3, 8), (3, 4), (128, 8), (128, 4)],
}


def prefill(q: Any, k: Any, v: Any, sm_scale: float, backend: str = "", bias: Any = 0.0) -> Any:
    """(rows, heads, width) each; the query heads of a group are side by side."""
    k, v = (x.repeat_interleave(q.shape[1] // x.shape[1], 1) for x in (k, v))
    scores = torch.einsum("qhd,khd->hqk", q, k) * sm_scale + bias
    return torch.einsum("hqk,khd->qhd", scores.softmax(-1), v)


def decode(q: Any, k: Any, v: Any, layout: str, use_tensor_cores: bool, sm_scale: float) -> Any:
    k, v = (x if layout == "NHD" else x.transpose(0, 1) for x in (k, v))
    return prefill(q[None], k, v, sm_scale)[0]


def biased(module: Any, q: Any, k: Any, v: Any, bias: Any, sm_scale: float) -> Any:
    return prefill(q, k, v, sm_scale, bias=bias.reshape(q.shape[0], k.shape[0]))


class Ragged:
    def __init__(self, workspace: Any, layout: str, backend: str) -> None:
        assert (layout, backend) == ("NHD", "fa2")

    def plan(self, rows: Any, keys: Any, *shape: int, sm_scale: float, q_data_type: Any) -> None:
        self.planned, self.scale = (rows.tolist(), keys.tolist(), shape), sm_scale

    def run(self, q: Any, k: Any, v: Any) -> Any:
        assert self.planned == ([0, q.shape[0]], [0, k.shape[0]], (q.shape[1], k.shape[1], q.shape[2]))
        return prefill(q, k, v, self.scale)


class Paged:
    def __init__(self, workspace: Any, layout: str, use_tensor_cores: bool, backend: str) -> None:
        self.layout = layout

    def plan(self, indptr: Any, indices: Any, last: Any, *shape: int, sm_scale: float, **dtypes: Any) -> None:
        self.pages, self.page, self.scale = indices, shape[3], sm_scale
        assert (indptr.tolist(), last.tolist()) == ([0, len(indices)], [shape[3]])

    def run(self, q: Any, cache: tuple[Any, Any]) -> Any:
        pages = [(x if self.layout == "NHD" else x.transpose(1, 2))[self.pages] for x in cache]
        assert {x.shape[1] for x in pages} == {self.page}
        return decode(q[0], *(x.flatten(0, 1) for x in pages), "NHD", False, self.scale)[None]


class Latent:
    def __init__(self, workspace: Any, backend: str) -> None:
        assert backend in ("fa2", "fa3")

    def plan(self, *given: Any) -> None:
        rows, keys, self.pages, lengths, *self.shape, causal, self.scale, _, _ = given
        assert not causal
        assert (rows.tolist(), keys.tolist()) == ([0, 1], [0, len(self.pages)])
        assert lengths.tolist() == [len(self.pages) * self.shape[-1]]

    def run(self, q: Any, p: Any, c: Any, r: Any) -> Any:
        assert self.shape == [*q.shape[1:], p.shape[-1], c.shape[1]]
        keys = torch.cat([c, r], -1)[self.pages].flatten(0, 1)
        return prefill(torch.cat([q, p], -1), keys[:, None], c[self.pages].flatten(0, 1)[:, None], self.scale)


@pytest.fixture
def bench(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(ROOT / "bench")
    return importlib.import_module("kernels_h100")


@pytest.fixture
def flashinfer(monkeypatch: pytest.MonkeyPatch) -> None:
    package, inner = ModuleType("flashinfer"), ModuleType("flashinfer.prefill")
    package.__dict__.update(single_prefill_with_kv_cache=prefill, single_decode_with_kv_cache=decode)
    package.__dict__.update(BatchPrefillWithRaggedKVCacheWrapper=Ragged, BatchDecodeWithPagedKVCacheWrapper=Paged)
    package.__dict__.update(BatchMLAPagedAttentionWrapper=Latent)
    inner.__dict__.update(single_prefill_with_kv_cache_with_jit_module=biased)
    monkeypatch.setitem(sys.modules, "flashinfer", package)
    monkeypatch.setitem(sys.modules, "flashinfer.prefill", inner)
    make = torch.tensor
    monkeypatch.setattr(torch, "tensor", lambda values, dtype, device=None: make(values, dtype=dtype))
    monkeypatch.setattr(torch, "compile", lambda function, **options: function)


@pytest.mark.usefixtures("flashinfer")
@pytest.mark.parametrize("name", SHAPES)
def test_every_kernel_gets_its_layout(name: str, bench: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    peer = bench.flashinfer_peer
    monkeypatch.setattr(peer, "_workspace", lambda: None)
    monkeypatch.setattr(peer, "_biased", lambda width: None)
    generator = torch.Generator().manual_seed(0)
    inputs = [torch.randn(shape, generator=generator, dtype=torch.float64) for shape in SHAPES[name]]
    wanted = bench.EAGER[name](*inputs)
    arranged = bench.for_sdpa(name, inputs)
    found = list(peer.kinds(name, [arranged], bench.PREPARE.get(name)))
    assert len({label for label, _, _ in found}) == len(found) >= 2
    for label, call, sets in found:
        torch.testing.assert_close(call(*sets[0]).reshape(wanted.shape), wanted, msg=label)
    peer._ragged.cache_clear()
    peer._paged.cache_clear()
    peer._latent_pages.cache_clear()


def test_without_flashinfer_its_kernels_are_left_out(
    bench: ModuleType, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "flashinfer", None)
    assert bench._flashinfer("gqa", [[torch.ones(2, 8, 4)] * 3]) == []
    assert capsys.readouterr().out.startswith("  no FlashInfer: ")
