"""Reports about writes in place, views, layouts and random numbers."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from compiled_calls import floats, numbers, report, whole


@report(93363, lambda: (floats(4, 6)[1:3],))
def write_to_a_view(x: Any) -> Any:
    x.add_(1)
    return x * 2


@report(108472, lambda: (floats(20)[3:15].reshape(3, 4),))
def write_behind_an_offset(x: Any) -> Any:
    x[1].mul_(2)
    return x.sum(0), x[2]


@report(97083, lambda: (floats(1, 4),))
def write_to_a_squeezed_one(x: Any) -> Any:
    y = x.squeeze(0)
    y[0] = 7
    return y + 1, x * 2


@report(98143, lambda: (floats(8),))
def write_to_windows(x: Any) -> Any:
    y = x + 1
    y.unfold(0, 3, 3).abs_()
    return y, y.unfold(0, 4, 2) * 2


@report(104505, lambda: (floats(12),))
def write_to_strided_places(x: Any) -> Any:
    y = x.clone()
    y.as_strided((3, 2), (4, 1), 1).add_(5)
    return y, y.view(3, 4).t()


@report(174371, lambda: (floats(3, 4),))
def write_to_a_strided_clone(x: Any) -> Any:
    y = x.clone()
    torch.as_strided(y, (2, 3), (4, 1)).add_(1)
    return y, x


@report(197431, lambda: (floats(2, 2),))
def strided_view_of_repeated_ones(x: Any) -> Any:
    y = x.repeat(2, 3)
    return torch.as_strided(y[:, ::2], (2, 3), y.stride()), y


@report(127474, lambda: (floats(2, 3),))
def strided_view_of_tiles(x: Any) -> Any:
    return torch.as_strided(torch.tile(x, (2, 2)), (3, 2), (6, 2), 1) + 1


@report(174963, lambda: (floats(3, 4),))
def strided_view_of_rolled_ones(x: Any) -> Any:
    y = torch.roll(x.clone().fill_(2.0) + x, 1, 1)
    return torch.as_strided(y, (4, 3), (1, 4)), torch.roll(x, (1, -1), (0, 1))


@report(113010, lambda: (floats(3, 4), torch.zeros(4, 3)))
def result_into_a_transposed_one(x: Any, out: Any) -> Any:
    torch.abs(x, out=out.t())
    return out + 1


@report(113641, lambda: (floats(4, 6),))
def two_clamps_in_place(x: Any) -> Any:
    x[:, ::2].clamp_(min=0)
    x[::2].clamp_(max=0.5)
    return x + 0


@report(178680, lambda: (floats(3, 1, 4),))
def clamp_in_place_and_a_clone(x: Any) -> Any:
    y = x.add_(0.5).clamp_(-0.25, 0.75).squeeze(1)
    z = y.clone()
    y.mul_(2)
    return y, z


@report(114302, lambda: (floats(3, 1),))
def write_after_an_expansion(x: Any) -> Any:
    y = x.expand(3, 4).clone()
    y[0, 1] = 9
    return y, x.expand(3, 4) + y


@report(197448, lambda: (floats(1, 3),))
def fill_of_an_expanded_one(x: Any) -> Any:
    y = x.clone().expand(4, 3)
    y[1:2].fill_(2)
    return y + 0


@report(138908, lambda: (numbers(-10, -9, -10, dtype=torch.int64), floats(3, 4)))
def sums_at_places(i: Any, y: Any) -> Any:
    i = i + 10
    y[i] += y[i]
    return y * 1


@report(174074, lambda: (floats(4), numbers(1, 1, 3, dtype=torch.int64), floats(3)))
def sums_at_equal_places(x: Any, i: Any, v: Any) -> Any:
    y = x.clone()
    y.index_put_((i,), v, accumulate=True)
    return y, x.index_put((i,), v, accumulate=True), torch.index_add(x, 0, i, v)


@report(197582, lambda: (floats(6),))
def sums_at_computed_places(x: Any) -> Any:
    return torch.zeros(2).index_add(0, torch.arange(6) % 2, x), torch.zeros(2).scatter_add(0, torch.arange(6) % 2, x)


@report(175791, lambda: (floats(3, 4), floats(4, 5), floats(5)))
def product_written_at_places(a: Any, b: Any, v: Any) -> Any:
    y = a @ b
    y.index_put_((torch.tensor([0, 2]),), v.expand(2, 5))
    return y, y[1]


@report(198382, lambda: (floats(1, 3), floats(3)))
def first_of_equal_places(x: Any, v: Any) -> Any:
    y = x.expand(2, 3).contiguous()
    y.index_put_((torch.tensor([0, 0]), torch.tensor([0, 1])), v[:2])
    return y[0], y


@report(177631, lambda: (floats(2, 3), numbers(1, dtype=torch.int64)))
def sort_behind_a_write(x: Any, i: Any) -> Any:
    y = F.pad(x, (1, 1), value=-1.0)
    y.index_put_((i,), torch.zeros(5))
    return torch.sort(y, 1), y


@report(174969, lambda: (floats(4, 3).t(),))
def reshape_behind_a_write(x: Any) -> Any:
    return x.add_(1).reshape(-1), x.reshape(2, 6) * 2


@report(175496, lambda: (floats(3, 4),))
def softmax_behind_a_write(x: Any) -> Any:
    y = x.div_(2).softmax(-1)
    return y.detach(), x


@report(177821, lambda: (floats(3, 4), floats(3, 4, seed=1)))
def indexed_join(x: Any, y: Any) -> Any:
    z = torch.cat([x * 2, y], 0)
    w = z[[0, 3, 0]][:, [1, 2]]
    z[0] = 0
    return w, z


@report(174187, lambda: (floats(3),))
def write_to_the_data(x: Any) -> Any:
    y = x + 1
    y.data.mul_(2)
    return y, x


@report(113030, lambda: (floats(3), floats(3, seed=1)))
def data_of_another(a: Any, b: Any) -> Any:
    c = a * 1
    c.data = b
    return c + 1, a


@report(151156, lambda: (floats(4), numbers(1, 2, 3, 4, dtype=torch.int32)))
def write_to_bits(x: Any, bits: Any) -> Any:
    y = x + 1
    y.view(torch.int32).copy_(bits)
    return y


@report(155242, lambda: (floats(3),))
def write_of_a_constant(x: Any) -> Any:
    x.copy_(torch.tensor([1.0, 2.0, 3.0]))
    return x.sum()


@report(152425, lambda: (floats(2, 4),))
def exchanged_halves(x: Any) -> Any:
    a, b = x[0].clone(), x[1].clone()
    x[0], x[1] = b, a
    return x + a


@report(178964, lambda: (floats(5, 4).t(),))
def places_in_a_transposed_one(x: Any) -> Any:
    return x.max(0), x.max(1), x.argmin(), x.t().argmax()


@report(163929, lambda: (floats(5, 4),))
def place_in_a_changed_transposed_one(x: Any) -> Any:
    y = x.t()
    y[0, 1] = 100
    return y.argmax(), y.contiguous().argmax(), x.argmax()


@report(197739, lambda: (floats(4, 5), floats(5, 4)))
def place_between_layouts(x: Any, y: Any) -> Any:
    z = torch.lerp(x.t().contiguous() + 1, y, 0.3)
    return z.argmin(), z.t().argmin(1)


@report(174891, lambda: (floats(2, 3) + 1j * floats(2, 3, seed=1), floats(3)))
def complex_sums(x: Any, y: Any) -> Any:
    return x + y, (x @ x.mH).real, x * 2j


@report(115071, lambda: (floats(3) + 1j * floats(3, seed=1),))
def complex_sum_with_its_operand(x: Any) -> Any:
    y = x + x
    return y, x * 1, y.abs()


@report(111884, lambda: (floats(8) + 1j * floats(8, seed=1),))
def transform_by_halves(x: Any) -> Any:
    even, odd = x[::2], x[1::2]
    turn = torch.exp(-2j * torch.pi * torch.arange(4) / 8)
    return torch.cat([even + turn * odd, even - turn * odd])


@report(151524, lambda: (floats(4),))
def two_random_draws(x: Any) -> Any:
    return torch.rand(4) + x, torch.rand(4) * x


@report(175156, lambda: (floats(4),))
def two_random_integers(x: Any) -> Any:
    return torch.randint(0, 100, (4,)), torch.randint(0, 100, (4,)) + x


@report(107187, lambda: (floats(4),))
def seed_inside(x: Any) -> Any:
    torch.manual_seed(3)
    return x + torch.rand(4)


@report(97921, lambda: (floats(2, 3),))
def resized_argument(x: Any) -> Any:
    x.resize_(3, 2)
    return x + 1


@report(135432, lambda: (floats(3), 3), lambda: (floats(5), 5))
def size_as_a_number(x: Any, n: int) -> Any:
    return x * n, torch.arange(n) + n


@report(169602, lambda: (floats(7), 7), lambda: (floats(10), 10), dynamic=True)
def remainders_of_sizes(x: Any, n: int) -> Any:
    return x[: n % 4] + (-n) % 3, x.shape[0] // 2 % 3 + x.sum()


@report(148754, lambda: (floats(1, 8, 9),))
def folded_windows(x: Any) -> Any:
    return F.fold(x, (4, 4), 2), F.unfold(x.reshape(1, 2, 6, 6), 3, padding=1)


@report(164686, lambda: (whole(-9, 9, 6), whole(1, 9, 6)))
def integers_beside_numbers(x: Any, y: Any) -> Any:
    return (x - 3 + 1.0) * (0.1 - y / -5), x.float() % 3, torch.remainder(x, -4)
