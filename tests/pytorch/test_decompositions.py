"""Operators of which the first run of a graph does not tell whether they are eager PyTorch's: they
differ at numbers that it did not have."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from math import inf
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("onnxscript")

from torch_calls import compiled, same  # noqa: E402

from taso_mirage.torch.export import _exportable  # noqa: E402

pytestmark = [
    pytest.mark.filterwarnings("default::DeprecationWarning", "default::FutureWarning"),
    pytest.mark.usefixtures("exporting", "compiled_anew"),
]
functional = torch.nn.functional
LOGS = torch.tensor([-100.0, -200.0, 100.0, 200.0, -20.0, -50.0, -inf, 0.0])
OTHERS = torch.tensor([-101.0, -190.0, 105.0, 100.0, -20.0, -150.0, -inf, -inf])
GRID = torch.tensor([1.0, 0.3, 0.7, 3e6, -1.0, -0.3, 2e5, 7.0])
WHOLE = torch.tensor([-7, 7, -(2**31) + 1, 2**31 - 1, 16777217, -16777217, 0, 5], dtype=torch.int32)
CASES: dict[str, tuple[Callable[..., Any], Any, Any]] = {
    "log of a sigmoid": (lambda x, y: (functional.logsigmoid(x), y + 1), LOGS, OTHERS),
    "log of a sum": (torch.logaddexp, LOGS, OTHERS),
    "log of a sum, base 2": (torch.logaddexp2, LOGS, OTHERS),
    "loss of logits": (
        lambda x, y: functional.binary_cross_entropy_with_logits(x.clamp(-200), (y > 0).float(), pos_weight=x[2]),
        LOGS,
        OTHERS,
    ),
    "log of sums": (lambda x, y: (x + y).logcumsumexp(0) + y, LOGS, LOGS.flip(0)),
    "remainder": (lambda x, y: (x % 0.1, x % -7, torch.remainder(x, y)), GRID, GRID / 3),
    "quotient": (lambda x, y: (x // 0.1, torch.div(x, y, rounding_mode="floor")), GRID, GRID.new_full((8,), 0.1)),
    "quotient by zero": (torch.floor_divide, GRID, GRID * 0),
    "whole quotient": (
        lambda x, y: [torch.div(x, each, rounding_mode=mode) for mode in ("trunc", "floor") for each in (y, 3, -3)],
        WHOLE,
        torch.tensor([2, -2, 3, 3, 1, 3, 5, -5], dtype=torch.int32),
    ),
    "a small number that is added": (
        lambda x, y: (x / (x.norm() + 1e-9), (y + 1e-10).log(), (y.sum() - -1e-12).rsqrt(), x * 1.000004),
        GRID * 0,
        GRID * 0,
    ),
    "infinite": (lambda x, y: (x.isinf(), x.isposinf(), y.isneginf()), GRID.double() * 1e300, LOGS.double() * 1e300),
    "a volume without a bias": (
        lambda x, y: (
            functional.conv3d(x.reshape(1, 2, 1, 2, 2), y.reshape(2, 2, 1, 1, 2), padding=(0, 1, 0)),
            functional.conv3d(x.reshape(1, 2, 1, 2, 2), y.reshape(4, 1, 1, 2, 1), stride=2, groups=2),
        ),
        GRID.clamp(-9, 9),
        GRID.clamp(-5, 5),
    ),
    "remainder of a whole number": (lambda x, y: x % 2.5 + y, WHOLE % 1000, WHOLE % 3),
}


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_a_batch_norm_in_half_precision_sums_in_single(dtype: Any) -> None:
    """Squares of differences from the mean may be more than 65504; before a runtime, which may
    compute in more digits."""
    norm = torch.nn.BatchNorm1d(2).to(dtype)
    x = torch.randn(4, 2, 16, generator=torch.Generator().manual_seed(0)).to(dtype) * 900
    written = _exportable(torch.export.export(_Free(norm), (x, norm.running_mean, norm.running_var)))
    found = written.module()(x, norm.running_mean, norm.running_var)
    wanted = torch.nn.functional.batch_norm(x.double(), None, None, training=True)
    torch.testing.assert_close(found[0].double(), wanted, rtol=0, atol=4 * torch.finfo(dtype).eps)
    spread = x.double().transpose(0, 1).reshape(2, -1).var(1) * 0.1 + 0.9
    torch.testing.assert_close(found[2], spread.to(dtype))
    assert [each.dtype for each in found] == [dtype] * 3


class _Free(torch.nn.Module):  # type: ignore[misc]
    """A norm whose statistics are inputs."""

    def __init__(self, norm: Any) -> None:
        super().__init__()
        self.norm = norm

    def forward(self, x: Any, mean: Any, spread: Any) -> Any:
        mean, spread = mean.clone(), spread.clone()
        return functional.batch_norm(x, mean, spread, self.norm.weight, self.norm.bias, True, 0.1), mean, spread


def test_a_graph_that_hangs_on_no_input_has_no_nodes() -> None:
    ours, graphs = compiled(lambda x: (torch.ones(3) * 2, torch.arange(4)))
    with torch.no_grad(), warnings.catch_warnings():
        warnings.filterwarnings("error", message="taso_mirage")
        for _ in range(2):
            same(ours(GRID), (torch.full((3,), 2.0), torch.arange(4)))
    assert graphs[0].results


@pytest.mark.sampled(2)
@pytest.mark.parametrize("name", CASES)
def test_other_numbers_than_those_of_the_first_run(name: str) -> None:
    function, x, y = CASES[name]
    ours, graphs = compiled(function)
    first = (torch.arange(1, 9) / 8).to(x.dtype) if x.is_floating_point() else torch.arange(1, 9).to(x.dtype)
    with torch.no_grad(), warnings.catch_warnings():
        stays = "log of sums" in name
        warnings.filterwarnings("ignore" if stays else "error", message="taso_mirage")
        ours(first, first.flip(0))
        same(ours(x, y), function(x, y))
    assert len(graphs[0].results) == (2 if stays else 1)
