"""FlashInfer's attention kernels as peers of `kernels_h100.py`
(https://github.com/flashinfer-ai/flashinfer, 0.7.2).

Its prefill kernels (FlashAttention-2 and -3, and the batch kernel, whose plan is made ahead of
time) take queries and keys as (rows, heads, width) with any strides; its decode kernels take keys
with their rows or their heads outermost, and the batch kernel pages of them. An addend of the
scores is none of its arguments: the masked row is a variant of its own prefill kernel, in the form
that it documents.

    FLASHINFER_CUDA_ARCH_LIST=9.0a python bench/flashinfer_peer.py

builds the libraries of all rows where there may be no GPU (ten minutes on two cores; nvcc, the CUDA
runtime and the headers of cuRAND) and prints them: as data/aot/NAME/NAME.so inside the package they
are loaded without being built.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import cache, partial
from itertools import product
from typing import Any

PAGE, LATENT_PAGE = 16, 64
"""Rows of keys in a page, FlashInfer's usual one, and that of one latent head."""
Function = Callable[..., Any]
Kind = tuple[str, Function, list[list[Any]]]

BIASED = """
#include <flashinfer/attention/variants.cuh>
namespace flashinfer {
struct Biased : AttentionVariantBase {
  static constexpr bool use_softmax = true;
  uint32_t window_left, qo_len, kv_len;
  float sm_scale_log2;
  template <typename Params>
  __device__ __host__ Biased(const Params& params, uint32_t batch_idx, uint8_t* smem_ptr) {
    qo_len = params.get_qo_len(batch_idx);
    kv_len = params.get_kv_len(batch_idx);
    window_left = kv_len;
    sm_scale_log2 = math::log2e;
  }
  REGISTER_LOGITS_TRANSFORM(params, logits, batch_idx, qo_idx, kv_idx, qo_head_idx, kv_head_idx, {
    float bias = qo_idx < qo_len && kv_idx < kv_len ? float(params.bias[qo_idx * kv_len + kv_idx]) : 0.f;
    return logits * float(params.sm_scale) + bias;
  })
};
}
"""


def kinds(name: str, sets: Sequence[Sequence[Any]], prepare: Function | None) -> Iterator[Kind]:
    """The calls that compute a row, each with its label and its inputs; a call gives (heads,
    queries, width).

    `sets` has inputs as SDPA takes them, (heads, rows, width); `prepare` makes the queries, keys
    and values from them in the call.
    """
    import torch

    if name == "long_attention":
        yield from _decode(sets)
        return
    if name == "latent_attention":
        yield from _latent(sets)
        return
    forms: dict[str, Function] = {"": prepare or (lambda *inputs: inputs)}
    if prepare is not None:
        forms[", compiled"] = torch.compile(prepare, mode="max-autotune-no-cudagraphs", dynamic=False)
    kernels = _masked() if name == "masked_attention" else _prefill()
    for (label, kernel), (layout, view, inputs) in product(kernels.items(), _layouts(sets)):
        for suffix, form in forms.items():
            yield f"FlashInfer {label} {layout}{suffix}", _chained(form, view, kernel), inputs


def _chained(form: Function, view: Function, kernel: Function) -> Function:
    return lambda *inputs: kernel(*map(view, form(*inputs))).transpose(0, 1)


def _layouts(sets: Sequence[Sequence[Any]]) -> Iterator[tuple[str, Function, list[list[Any]]]]:
    """Inputs with their rows outermost and with their heads, and how they are seen as (rows, heads,
    width)."""
    rows = [[x[:, None] if x.dim() == 2 else x.transpose(0, 1).contiguous() for x in inputs] for inputs in sets]
    yield "NHD", lambda x: x, rows
    yield "HND", lambda x: x.transpose(0, 1) if x.dim() == 3 else x, [list(inputs) for inputs in sets]


def _prefill() -> dict[str, Function]:
    from flashinfer import single_prefill_with_kv_cache as single

    def batch(q: Any, k: Any, v: Any) -> Any:
        return _ragged(q.shape, k.shape[0], k.shape[1]).run(q, k, v)

    kernels = {f"prefill {each}": partial(single, sm_scale=1.0, backend=each) for each in ("fa2", "fa3")}
    return kernels | {"batch prefill fa2": batch}


@cache
def _ragged(shape: tuple[int, int, int], keys: int, heads: int) -> Any:
    """The batch kernel, planned for a batch of one. It must be planned outside of a CUDA graph."""
    import torch
    from flashinfer import BatchPrefillWithRaggedKVCacheWrapper

    wrapper = BatchPrefillWithRaggedKVCacheWrapper(_workspace(), "NHD", backend="fa2")
    indptr = [torch.tensor([0, n], dtype=torch.int32, device="cuda") for n in (shape[0], keys)]
    wrapper.plan(*indptr, shape[1], heads, shape[2], sm_scale=1.0, q_data_type=torch.float16)
    return wrapper


def _masked() -> dict[str, Function]:
    from flashinfer.prefill import single_prefill_with_kv_cache_with_jit_module as prefill

    def biased(q: Any, k: Any, v: Any, bias: Any) -> Any:
        return prefill(_biased(q.shape[-1]), q, k, v, bias, q.shape[-1] ** -0.5)

    return {"prefill fa2 variant": biased}


def biased_spec(width: int) -> Any:
    """The specification from which FlashInfer builds `BIASED`; scores are scaled by its last
    argument, then the one before is added."""
    import torch
    from flashinfer.jit.attention.modules import gen_customize_single_prefill_module

    half = (torch.float16,) * 3
    name, arguments = f"single_prefill_biased_f16_{width}", (["bias"], ["half"], ["sm_scale"], ["double"])
    return gen_customize_single_prefill_module("fa2", name, *half, width, width, *arguments, "Biased", BIASED)


@cache
def _biased(width: int) -> Any:
    return biased_spec(width).build_and_load()


def _decode(sets: Sequence[Sequence[Any]]) -> Iterator[Kind]:
    """Queries (heads, group, width), each row of which is a query head of its own."""
    from flashinfer import single_decode_with_kv_cache

    def single(q: Any, k: Any, v: Any, layout: str, cores: bool) -> Any:
        return single_decode_with_kv_cache(q, k, v, layout, use_tensor_cores=cores, sm_scale=1.0)

    def batch(q: Any, k: Any, v: Any, layout: str, cores: bool) -> Any:
        heads = k.shape[2 if layout == "NHD" else 1]
        return _paged(q.shape, k.shape[0], heads, layout, cores).run(q[None], (k, v))

    for layout, inputs in _cached(sets):
        pages = [[q, *(_pages(x, layout) for x in kv)] for q, *kv in inputs]
        for cores in (False, True):
            label = f"{'tensor' if cores else 'CUDA'} cores {layout}"
            yield f"FlashInfer decode {label}", partial(single, layout=layout, cores=cores), inputs
            yield f"FlashInfer batch decode {label}", partial(batch, layout=layout, cores=cores), pages


def _cached(sets: Sequence[Sequence[Any]]) -> Iterator[tuple[str, list[list[Any]]]]:
    """Queries as (heads, width); keys and values as (rows, heads, width) and as (heads, rows,
    width)."""
    queries = [q.reshape(-1, q.shape[-1]) for q, _, _ in sets]
    yield "NHD", [[q, *(x.transpose(0, 1).contiguous() for x in kv)] for q, (_, *kv) in zip(queries, sets, strict=True)]
    yield "HND", [[q, *kv] for q, (_, *kv) in zip(queries, sets, strict=True)]


def _pages(x: Any, layout: str) -> Any:
    """(pages, rows, heads, width) of (rows, heads, width), or (pages, heads, rows, width) of
    (heads, rows, width)"""
    if layout == "NHD":
        return x.unflatten(0, (-1, PAGE))
    return x.unflatten(1, (-1, PAGE)).transpose(0, 1).contiguous()


@cache
def _paged(shape: tuple[int, int], pages: int, heads: int, layout: str, cores: bool) -> Any:
    """The batch kernel, planned for a batch of one. It must be planned outside of a CUDA graph."""
    import torch
    from flashinfer import BatchDecodeWithPagedKVCacheWrapper

    wrapper = BatchDecodeWithPagedKVCacheWrapper(_workspace(), layout, use_tensor_cores=cores, backend="fa2")
    indptr, indices, last = (torch.tensor(x, dtype=torch.int32) for x in ([0, pages], list(range(pages)), [PAGE]))
    plan = partial(wrapper.plan, indptr, indices, last, shape[0], heads, shape[1], PAGE)
    plan(sm_scale=1.0, q_data_type=torch.float16, kv_data_type=torch.float16)
    return wrapper


def _latent(sets: Sequence[Sequence[Any]]) -> Iterator[Kind]:
    """Queries (1, heads, width + rotary), keys (1, rows, width + rotary), and their first columns,
    the values."""
    width = sets[0][2].shape[-1]
    columns = [[x.split([width, x.shape[-1] - width], -1) for x in (q, _rows(k[0]))] for q, k, _ in sets]
    one = [[*q, *k] for q, k in columns]

    def call(q: Any, p: Any, c: Any, r: Any, backend: str) -> Any:
        return _latent_pages(tuple(q.shape), p.shape[-1], c.shape[0], backend).run(q, p, c, r)

    for backend in ("fa2", "fa3"):
        yield f"FlashInfer MLA {backend}, one tensor of keys", partial(call, backend=backend), one
        two = [[x.contiguous() for x in inputs] for inputs in one]
        yield f"FlashInfer MLA {backend}, two tensors", partial(call, backend=backend), two


def _rows(keys: Any) -> Any:
    return keys.unflatten(0, (-1, LATENT_PAGE))


@cache
def _latent_pages(shape: tuple[int, int, int], rotary: int, pages: int, backend: str) -> Any:
    """The kernel for one latent head, planned for a batch of one. It must be planned outside of a
    CUDA graph."""
    import torch
    from flashinfer import BatchMLAPagedAttentionWrapper

    wrapper = BatchMLAPagedAttentionWrapper(_workspace(), backend=backend)
    lengths = ([0, 1], [0, pages], list(range(pages)), [pages * LATENT_PAGE])
    given = [torch.tensor(x, dtype=torch.int32, device="cuda") for x in lengths]
    wrapper.plan(*given, *shape[1:], rotary, LATENT_PAGE, False, 1.0, torch.float16, torch.float16)
    return wrapper


def _workspace() -> Any:
    import torch

    return torch.zeros(2**27, dtype=torch.uint8, device="cuda")


def specs() -> list[Any]:
    """The specifications of the kernels of all rows in FlashInfer 0.7.2: queries, keys and values
    in half precision of width 64 and 128 (pages of keys and decoding: 128 alone; one latent head:
    512 and 64). The kernels of batches have no public name there."""
    import torch
    from flashinfer.jit.attention import modules

    half, plain = (torch.float16,) * 3, (0, False, False)
    found = [biased_spec(64)]
    for width in (64, 128):
        sizes = (width, width, *plain)
        found += [modules.gen_single_prefill_module(each, *half, *sizes, False) for each in ("fa2", "fa3")]
        found.append(modules._gen_batch_prefill_primary_module("fa2", *half, torch.int32, *sizes, False))
    wide = (128, 128, *plain)
    found.append(modules._gen_batch_prefill_independent_paged_module("fa2", *half, torch.int32, *wide, False))
    found.append(modules.gen_single_decode_module(*half, *wide))
    found += [modules.gen_batch_mla_module(each, *half, torch.int32, 512, 64, False) for each in ("fa2", "fa3")]
    return [*found, modules.gen_batch_decode_module(*half, torch.int32, *wide)]


if __name__ == "__main__":
    for spec in specs():
        spec.build(verbose=False)
        print(spec.get_library_path(), flush=True)
