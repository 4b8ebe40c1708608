"""Reports about values: ends of ranges, types, and options of operators."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from compiled_calls import floats, numbers, report, whole

INF, NAN = float("inf"), float("nan")
BYTES = torch.uint8


@report(96604, lambda: (numbers(0, 1, 5, 255, dtype=BYTES),))
def negated_bytes(x: Any) -> Any:
    return torch.neg(x), -x + 1


@report(161763, lambda: (numbers(0, 1, 5, 255, dtype=BYTES), numbers(1, -2, 300, 7, dtype=torch.int64)))
def negated_bytes_and_a_sum(x: Any, y: Any) -> Any:
    return -x + y, torch.neg(x).to(torch.float32)


@report(156788, lambda: (numbers(-1.5, 0.5, 3.99, 200.2, 254.0),))
def floats_as_bytes(x: Any) -> Any:
    return x.abs().to(BYTES), (x.abs().to(BYTES) + 1).to(torch.int32)


@report(143555, lambda: (numbers(-5, 7, 1 << 40, dtype=torch.int64),))
def shifts(x: Any) -> Any:
    return torch.bitwise_right_shift(x, 3), torch.bitwise_left_shift(x, 2), torch.bitwise_right_shift(x, 63)


@report(145929, lambda: (numbers(0, 1, 200, dtype=BYTES), numbers(-5, 0, 100, dtype=torch.int64)))
def buckets_of_bytes(x: Any, edges: Any) -> Any:
    return torch.bucketize(x, edges), torch.bucketize(x, edges, right=True)


@report(135873, lambda: (floats(4, 6).t(), floats(8).sort().values[::2]))
def buckets_of_strided_ones(x: Any, edges: Any) -> Any:
    return torch.bucketize(x, edges)


@report(163528, lambda: (floats(3, 5).sort().values, floats(3, 4, seed=1)))
def searched_places(edges: Any, x: Any) -> Any:
    return torch.searchsorted(edges, x), torch.searchsorted(edges, x, right=True, out_int32=True)


@report(171262, lambda: (numbers(1, 2, 3, dtype=torch.int64),))
def members(x: Any) -> Any:
    return torch.isin(x, 2), torch.isin(2, x), torch.isin(x, torch.tensor([3, 1]), invert=True)


@report(100800, lambda: (floats(17), numbers(*[i % 3 for i in range(17)], dtype=torch.int64)))
def choices(x: Any, i: Any) -> Any:
    return torch.where(i == 1, x, i.to(torch.float32)), torch.where(x > 0, i, -1)


@report(117544, lambda: (numbers(-90, -1, 0, 1, 90),))
def large_sines(x: Any) -> Any:
    return torch.relu(torch.sinh(x)), torch.sinh(torch.relu(x))


@report(118266, lambda: (numbers(-1, -0.5, 0, 1e-20, 2).reshape(1, 5),))
def largest_logarithm(x: Any) -> Any:
    y = torch.log1p(x)
    return y, y.argmax(1), torch.log1p(-x.abs()).argmax(1)


@report(118267, lambda: (numbers(0.5, 1, 1 + 1e-6, 3, 1e30),))
def inverse_cosines(x: Any) -> Any:
    return torch.acosh(x), torch.acosh(x * x)


@report(142345, lambda: (numbers(-1e30, -1e4, -1, -1e-8, 0, 1e30),))
def inverse_sines(x: Any) -> Any:
    return torch.asinh(x)


@report(132107, lambda: (numbers(INF, INF, 1, INF), numbers(1, -INF, 2, -INF)))
def running_sums_of_infinities(x: Any, y: Any) -> Any:
    return x.cumsum(0), y.cumsum(0), torch.logcumsumexp(y, 0)


@report(109925, lambda: (whole(-5, 5, 4, 3, dtype=torch.int32), whole(0, 2, 5).bool()))
def running_sums_of_integers(x: Any, y: Any) -> Any:
    return x.cumsum(1), y.cumsum(0), x.cumprod(0), y.sum()


@report(141753, lambda: (numbers(1, 5, 7, 1e-3), numbers(3, 7, 11, 49)))
def quotients(x: Any, y: Any) -> Any:
    return x / y, (x / y) * y, torch.floor(x / y)


@report(157959, lambda: (whole(-9, 9, 6), floats(6)))
def quotients_of_a_number(x: Any, y: Any) -> Any:
    return x / 3, x // 4, x % 4, y / 0.1, torch.div(x, 4, rounding_mode="trunc"), y // 0.25


@report(148241, lambda: (floats(9), floats(9, seed=1)))
def angles(x: Any, y: Any) -> Any:
    return torch.atan2(F.tanhshrink(x), y), torch.atan2(-x.abs() * 0, y)


@report(197586, lambda: (numbers(-0.0, 0.0, -1, 1),))
def angles_of_zeros(x: Any) -> Any:
    return torch.angle(x), torch.atan2(x, numbers(-1, -1, -0.0, 0.0)), torch.signbit(x)


@report(151400, lambda: (floats(3) * 1e30, floats(4) * 1e12))
def large_outer_products(x: Any, y: Any) -> Any:
    return torch.outer(x, y), torch.outer(x, y) * 0


@report(143648, lambda: (numbers(0.3, 1, 2.5, 10),))
def derivatives_of_gamma(x: Any) -> Any:
    return torch.special.polygamma(0, x), torch.special.polygamma(2, x)


@report(147450, lambda: (numbers(0.3, 1, 2.5, 10),))
def first_derivative_of_gamma(x: Any) -> Any:
    return torch.special.polygamma(1, x)


@report(152423, lambda: (numbers(1, NAN, 3, 4, 0, -2, 5, 7).reshape(2, 4),))
def quantiles(x: Any) -> Any:
    return torch.nanquantile(x, 0.3, 1), torch.quantile(x, 0.3, 1), torch.quantile(x, torch.tensor([0.2, 0.8]))


@report(145379, lambda: (numbers(-0.5, 0, 1e-4, 0.3, 0.9, 1, 1.5),))
def logits_with_an_end(x: Any) -> Any:
    return torch.logit(x, eps=1e-3), torch.logit(x), torch.special.logit(x, 0.2)


@report(177839, lambda: (numbers(0.1, 0.3, 0.6, 0.9),))
def logits_with_exchanged_ends(x: Any) -> Any:
    return torch.logit(x, eps=0.7)


@report(98149, lambda: (whole(1, 4, 5), floats(5)))
def cosines_of_powers(x: Any, y: Any) -> Any:
    return torch.pow(x, 2).cos(), torch.pow(y, x).cos(), torch.pow(2, x)


@report(115260, lambda: (floats(3, 5),))
def tangent_with_its_operand(x: Any) -> Any:
    y = x.sum(1) * 1.5
    return torch.tan(y), y


@report(113015, lambda: (floats(7, 4),))
def sums_beside_slices(x: Any) -> Any:
    every = x[::3]
    return torch.maximum(x[2:3], -every), every.sum(0)


@report(113141, lambda: (floats(3, 1, 5), floats(4, 1)))
def sums_of_exchanged_factors(x: Any, y: Any) -> Any:
    return (x * y).sum((0, 1)), (y * x).sum((0, 1))


@report(113143, lambda: (whole(-9, 9, 6, dtype=torch.int32), whole(-9, 9, 6, dtype=torch.int32)))
def products_as_small_integers(x: Any, y: Any) -> Any:
    return (x * y * 48).to(BYTES), (x * (y * 48)).to(torch.int8)


@report(166253, lambda: (floats(3), 1.1), lambda: (floats(3), 2.3))
def filled_with_a_number(x: Any, value: float) -> Any:
    return torch.full((3,), value, dtype=torch.float64), x * value


# ---------------------------------------------------------------- options of operators


@report(100987, lambda: (floats(1, 2, 5, 7),))
def averages_over_the_edge(x: Any) -> Any:
    yes = F.avg_pool2d(x, 3, 2, 1, ceil_mode=True, count_include_pad=True)
    return yes, F.avg_pool2d(x, (2, 3), (2, 3), (1, 0), ceil_mode=True, count_include_pad=False)


@report(143738, lambda: (whole(-9, 9, 1, 1, 4, 4),))
def averages_of_integers(x: Any) -> Any:
    return F.avg_pool2d(x, 2)


@report(113013, lambda: (floats(2, 3, 7),))
def largest_of_averages(x: Any) -> Any:
    y = F.adaptive_avg_pool1d(x, 4)
    return y, y.argmax(-1)


@report(197434, lambda: (floats(2, 3, 6, 5).transpose(2, 3),))
def places_of_the_largest(x: Any) -> Any:
    return F.adaptive_max_pool2d(x, (2, 3), return_indices=True), F.max_pool2d(x, 2, return_indices=True)


@report(141538, lambda: (floats(1, 2, 8, 8), floats(1, 2, 2).sigmoid()))
def largest_of_random_windows(x: Any, where: Any) -> Any:
    return F.fractional_max_pool2d(x, 2, output_size=(4, 5), _random_samples=where)


@report(147261, lambda: (floats(1, 2, 5, 6),), lambda: (floats(1, 2, 9, 4),), dynamic=True)
def enlarged_by_a_factor(x: Any) -> Any:
    return F.interpolate(x, scale_factor=1.6, mode="bilinear", align_corners=False)


@report(175154, lambda: (floats(1, 2, 5, 6),))
def nearest_by_a_factor(x: Any) -> Any:
    return F.interpolate(x, scale_factor=1.7), F.interpolate(x, scale_factor=0.6, recompute_scale_factor=True)


@report(170682, lambda: (floats(1, 2, 5, 6, dtype=torch.bfloat16),))
def nearest_in_half(x: Any) -> Any:
    return F.interpolate(x, size=(7, 11), mode="nearest"), F.interpolate(x, size=(7, 11), mode="nearest-exact")


@report(198379, lambda: (floats(1, 2, 5, 6),))
def enlarged_and_padded(x: Any) -> Any:
    y = F.interpolate(x, size=(9, 4), mode="bilinear", align_corners=False)
    return F.pad(y, (1, 1, 0, 2)) > 0.25


@report(150165, lambda: (floats(1, 2, 5, 6),))
def enlarged_to_the_corners(x: Any) -> Any:
    return F.interpolate(x, size=(8, 8), mode="bilinear", align_corners=True)


@report(130290, lambda: (numbers(1, 0, 2, 0, 3), floats(5)))
def sizes_that_depend_on_values(x: Any, y: Any) -> Any:
    kept = torch.nonzero(x).squeeze(1)
    return y[kept] * 2, y[x > 0].sum()


@report(174078, lambda: (floats(4, 6),))
def dropout_of_a_transposed_one(x: Any) -> Any:
    return F.dropout(x.t(), 0.5, training=False).contiguous(), F.dropout(x, 0.5, training=False).t() + 1
