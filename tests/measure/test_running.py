"""Times of runs, without the copies of arrays to a session and back."""

import numpy as np
import pytest

from taso_mirage.measure.check import CheckCase
from taso_mirage.pipeline.problem import running_seconds


class Prepared:
    """A session whose runs take so long where inputs are."""

    def __init__(self, seconds: list[float]) -> None:
        self.seconds, self.runs = seconds, 0

    def prepared(self, inputs: object) -> "Prepared":
        return self

    def __call__(self) -> float:
        self.runs += 1
        return self.seconds[self.runs - 1]


def case(elements: int) -> CheckCase:
    x = np.zeros(elements, np.float32)
    return CheckCase("random inputs", {"x": x}, [x], [x], lambda ways: [], None)


@pytest.mark.parametrize(
    ("elements", "checked", "found", "runs"),
    [
        (1 << 24, 1.0, 0.003, 2),  # 128 MB: a GPU's run, of which the second is the fast one
        (1 << 24, 60.0, 60.0, 0),  # a slow run is not run again for them
        (1 << 10, 0.001, 0.001, 0),
    ],
)
def test_the_way_of_large_arrays_does_not_count(elements: int, checked: float, found: float, runs: int) -> None:
    session = Prepared([0.02, 0.003])
    assert running_seconds(session, case(elements), checked) == found  # type: ignore[arg-type]
    assert session.runs == runs
