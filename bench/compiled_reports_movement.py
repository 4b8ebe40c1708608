"""Reports about movement: splits, joins, borders, copies and layouts."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from compiled_calls import floats, numbers, report


@report(99686, lambda: (floats(4, 9),))
def split_and_joined(x: Any) -> Any:
    a, b, c = torch.split(x, [2, 3, 4], 1)
    return torch.cat([c, a, b], 1), torch.cat([a, c], 1)


@report(122379, lambda: (floats(4, 8),))
def joined_list_that_changes(x: Any) -> Any:
    parts = list(torch.split(x, 2, 1))
    first = torch.cat(parts, 1)
    parts[0] = parts[0] * 2
    parts.append(parts[1])
    return first, torch.cat(parts, 1)


@report(137254, lambda: (floats(3), floats(4, 5), floats(5, 3)))
def product_joined_with_itself(bias: Any, a: Any, b: Any) -> Any:
    y = torch.addmm(bias, a, b)
    return torch.cat([y, y], 1), torch.cat([y, y.relu()], 0)


@report(115157, lambda: (floats(1, 2, 5, 7),))
def repeated_border_twice(x: Any) -> Any:
    p = F.pad(x.abs(), (0, 3, 4, 0), "replicate")
    return p, p + p


@report(97117, lambda: (floats(2, 3),))
def border_of_nothing(x: Any) -> Any:
    y = F.pad(x, (0, 0, 0, 0), value=3.0)
    return y.add_(1), x


@report(144187, lambda: (floats(2, 3, 4).transpose(0, 2),))
def border_of_a_transposed_one(x: Any) -> Any:
    return F.pad(x, (1, 0, 0, 2), value=0.5), F.pad(x, (-1, 0))


@report(144462, lambda: (floats(2, 3, 4),))
def border_of_a_value(x: Any) -> Any:
    return F.pad(x, (1, 2, 3, 4), value=-7.5) * 2


@report(117019, lambda: (floats(2, 3),))
def diagonal(x: Any) -> Any:
    return torch.diag_embed(x, 1, 0, 2), torch.diag_embed(x, -2)


@report(171366, lambda: (floats(4, 6),))
def copied_view(x: Any) -> Any:
    return torch.view_copy(x, (3, 8)), torch.view_copy(x, torch.int32)


@report(114464, lambda: (floats(4, 4).t(),))
def clone_before_a_reshape(x: Any) -> Any:
    y = x.clone(memory_format=torch.contiguous_format).reshape(-1)
    return y.add_(1), x


@report(161010, lambda: (floats(4, 6).t(),))
def clone_that_keeps_the_layout(x: Any) -> Any:
    return (x + 1).clone(memory_format=torch.preserve_format), x.clone()


@report(168381, lambda: (floats(5, 4).t(), numbers(2, 0, 1, dtype=torch.int64)))
def selected_rows(x: Any, i: Any) -> Any:
    return torch.index_select(x, 0, i), torch.index_select(x, 1, i)


@report(116433, lambda: (floats(2, 3, 4, 4),))
def channels_last(x: Any) -> Any:
    return x.to(memory_format=torch.channels_last) * 2, x.permute(0, 2, 3, 1) + 1


@report(152634, lambda: (numbers(0, 1, 2, 0, 3),))
def places_of_a_fixed_number(x: Any) -> Any:
    return torch.nonzero_static(x, size=4)


@report(185702, lambda: (floats(4, 3, 8), floats(4, 3)))
def slice_that_is_stacked(x: Any, y: Any) -> Any:
    a, b = F.softplus(x[..., 5]) + 0.01, F.softplus(y) + 0.01
    return torch.stack([torch.lgamma(a), torch.erf(a * b), torch.xlogy(a, b)], -1)
