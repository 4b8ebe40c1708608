"""The judge of compilers of PyTorch finds what differs from eager mode, and nothing else."""

from __future__ import annotations

from types import ModuleType
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from scripts import script  # noqa: E402

X = torch.linspace(-1, 1, 6).reshape(2, 3)
FAULTS: dict[str, tuple[str, Any]] = {
    "nothing": ("right", X.clone()),
    "a rounding": ("right", X * (1 + 2.0**-23)),
    "a digit": ("wrong", X * 1.001),
    "one element": ("wrong", X + 1e-3 * (torch.arange(6) == 4).reshape(2, 3)),
    "an infinity": ("wrong", X / (X < 1)),
    "a shape": ("interface", X.reshape(3, 2)),
    "a layout": ("interface", X.t().contiguous().t()),
    "a type": ("interface", X.double()),
    "a number": ("interface", 1.0),
}


@pytest.fixture(scope="module")
def bench() -> ModuleType:
    return script("compiled")


@pytest.mark.parametrize("name", FAULTS)
def test_each_fault_is_found(name: str, bench: ModuleType) -> None:
    kind, found = FAULTS[name]
    said = bench.compared([found], [X], [X.double()])
    assert (said.kind if said else "right") == kind, said


def test_other_integers_and_another_number_of_results_are_found(bench: ModuleType) -> None:
    one, other = torch.tensor([1, 2]), torch.tensor([1, 3])
    assert bench.compared([other], [one], [one]).kind == "wrong"
    assert bench.compared([one], [one, one], [one, one]).kind == "interface"


@pytest.mark.filterwarnings("ignore")
def test_every_report_is_right_in_eager_mode(bench: ModuleType) -> None:
    reports = bench.reports()
    assert len(reports) > 100
    with torch.no_grad():
        for name, report in reports.items():
            first, second = (bench.results(report.function, name) for _ in range(2))
            for one, two in zip(first, second, strict=True):
                assert bench.compared(one, two, two) is None, name


def test_a_write_in_place_that_a_compiler_loses_is_found(bench: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    def losing(function: Any, **_: Any) -> Any:
        return lambda *given: function(*(each.clone() for each in given))

    monkeypatch.setattr(torch, "compile", losing)
    found = bench.verdict("pytorch 97083", bench.OURS)
    assert (found.kind, found.why.partition(":")[0]) == (bench.WRONG, "call 1, result 2")
