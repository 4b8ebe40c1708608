"""Reports about products, normalizations, norms and attention."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from compiled_calls import floats, numbers, report, whole


@report(98852, lambda: (floats(2, 5), floats(5, 5, seed=1)))
def one_layer_three_times(x: Any, w: Any) -> Any:
    for _ in range(3):
        x = F.relu(F.linear(x, w))
    return x


@report(167313, lambda: (floats(4, 3), floats(4, 5), floats(5, 3)))
def factors_of_a_product(c: Any, a: Any, b: Any) -> Any:
    return torch.addmm(c, a, b, beta=0.5, alpha=3), torch.addmm(c, a, b, beta=0), torch.addmm(c, a, b, alpha=0)


@report(115261, lambda: (floats(6, 5), floats(5, 4)))
def product_with_more_outputs(a: Any, b: Any) -> Any:
    y = a @ b
    return y, y.t(), (y.t() + 1).contiguous()


@report(151098, lambda: (floats(2, 4, 8), floats(2, 4, 8, seed=1), floats(2, 4, 8, seed=2)))
def attention_divided(q: Any, k: Any, v: Any) -> Any:
    return F.softmax(q @ k.transpose(-1, -2) / 8**0.5, -1) @ v


@report(175632, lambda: (floats(2, 4, 8), floats(2, 8, 4, seed=1), floats(2, 4, 4), floats(2, 4, 8, seed=2)))
def attention_with_a_mask(q: Any, k: Any, mask: Any, v: Any) -> Any:
    return torch.softmax((q @ k).transpose(1, 2).div(2.0).add(mask), dim=-1) @ v


@report(121174, lambda: (floats(2, 4, 2, 8), floats(2, 4, 2, 8, seed=1), floats(2, 4, 2, 8, seed=2)))
def attention_of_moved_heads(q: Any, k: Any, v: Any) -> Any:
    q, k, v = (each.permute(0, 2, 1, 3) for each in (q, k, v))
    return torch.matmul(torch.softmax(torch.matmul(q, k.transpose(-2, -1)).div(8**0.5), dim=-1), v)


@report(159469, lambda: (floats(1, 4, 5, 8), floats(1, 2, 5, 8, seed=1), floats(1, 2, 5, 8, seed=2)))
def attention_of_groups(q: Any, k: Any, v: Any) -> Any:
    mask = torch.ones(5, 5, dtype=torch.bool).tril()
    return F.scaled_dot_product_attention(q, k, v, attn_mask=mask, enable_gqa=True)


@report(
    100970,
    lambda: (floats(4, 3, 5), floats(3), floats(3).abs()),
    lambda: (floats(2, 3, 7, 2), floats(3), floats(3).abs()),
)
def batch_norm_of_other_ranks(x: Any, m: Any, v: Any) -> Any:
    return F.batch_norm(x, m, v)


@report(143182, lambda: (floats(2, 64) * 1e-3 + 1e3,))
def layer_norm_far_from_zero(x: Any) -> Any:
    return F.layer_norm(x, (64,))


@report(113167, lambda: (floats(3, 1, 5),))
def variances(x: Any) -> Any:
    return torch.var_mean(x, 2, correction=2, keepdim=True), torch.var_mean(x, (0, 2), unbiased=False)


@report(153568, lambda: (floats(3, 4),))
def norms(x: Any) -> Any:
    return [torch.linalg.vector_norm(x, p, 1) for p in (0, 1, 2, 3, float("inf"), -float("inf"), 0.5)]


@report(163082, lambda: (floats(16, 7) * 1e-3,))
def lengths_of_normalized_ones(x: Any) -> Any:
    return F.normalize(x), F.normalize(x, p=1.0, dim=0, eps=1e-2)


@report(151198, lambda: (floats(4, 6), floats(4, 6, seed=1)))
def distances_of_pairs(x: Any, y: Any) -> Any:
    return F.pairwise_distance(x, y), F.pairwise_distance(x, y, p=1.5, keepdim=True)


@report(143960, lambda: (numbers(1e-20), numbers(3e-20)))
def distance_of_small_ones(x: Any, y: Any) -> Any:
    return torch.dist(x, y), torch.dist(x, y, p=1)


@report(101039, lambda: (floats(4, 33) * 20,))
def sum_of_a_softmax(x: Any) -> Any:
    return F.softmax(x, 0).sum(0), F.softmax(x, 1).sum(1)


@report(100775, lambda: (floats(4, 5),))
def softmax_of_large_ones(x: Any) -> Any:
    return x.mul(1e38).softmax(-1), x.mul(3e4).softmax(0)


@report(113012, lambda: (floats(4, 5), whole(0, 2, 4, 5) * 2 - 1))
def hinges(x: Any, y: Any) -> Any:
    return F.hinge_embedding_loss(x, y), F.hinge_embedding_loss(x, y, margin=0.3, reduction="none")


@report(163449, lambda: (floats(3, 2), floats(2, 4)))
def power_of_a_norm(x: Any, z: Any) -> Any:
    return torch.norm(x @ z) ** torch.clamp(x.var(0).sum(), 0.1, 1.0)


@report(113018, *[lambda: (floats(1, 3, 6, 6), floats(6, 3, 1, 1))] * 2)
def convolution_run_twice(x: Any, w: Any) -> Any:
    return F.conv2d(x, w, stride=2, padding=1), F.conv2d(x, w[:3].reshape(3, 3, 1, 1).transpose(0, 1))
