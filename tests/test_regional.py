"""The check of large models: patches on the values of one run, with the float64 evaluation of the
whole model switched off."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from deep_mutants import Sizes, Transformer, mutants, planted, right_ones

from taso_mirage.measure import regional
from taso_mirage.measure.check import Difference, compare
from taso_mirage.measure.reference import FloatReference
from taso_mirage.measure.regional import ClaimedModel, RegionalCheck
from taso_mirage.measure.session import open_in_child
from taso_mirage.measure.target import CPU
from taso_mirage.measure.whole import cases_by_runs

MANY = 60
"""Terms of a float64 evaluation that is one of the whole model."""
MUTANTS, RIGHT = mutants(), right_ones()


class Checked:
    """A model with its cases, and the patches that were compared."""

    def __init__(self, sizes: Sizes) -> None:
        self.made = Transformer(sizes)
        model = self.made.model
        self.cases = list(cases_by_runs(model, open_in_child(model, CPU), {}))[:1]
        self.regions = RegionalCheck(model, self.cases)

    def regional(self, change, layer: int) -> list[Difference]:  # type: ignore[no-untyped-def]
        found = planted(self.made, change, layer)
        return self.regions.differences(ClaimedModel(found.model, CPU, found.claims, {}))

    def whole(self, change, layer: int) -> list[Difference]:  # type: ignore[no-untyped-def]
        model = planted(self.made, change, layer).model
        return compare(model, open_in_child(model, CPU), self.cases)


@pytest.fixture(scope="module")
def checked() -> Iterator[Checked]:
    """With evaluations of the whole model switched off, and every patch cut."""
    patch = pytest.MonkeyPatch()
    given = FloatReference.__call__

    def small(self: FloatReference, *args: object) -> object:
        assert len(self.model.nodes()) < MANY
        return given(self, *args)  # type: ignore[arg-type]

    patch.setattr(FloatReference, "__call__", small)
    patch.setattr(regional, "CHEAP", 0.0)
    yield Checked(Sizes())
    patch.undo()


@pytest.mark.parametrize("name", MUTANTS)
def test_a_wrong_rewrite_deep_in_a_model_is_found(checked: Checked, name: str) -> None:
    layer = 1 + list(MUTANTS).index(name) % (checked.made.sizes.layers - 1)
    found = checked.regional(MUTANTS[name], layer)
    assert found
    assert any(not each.passed for each in found)


@pytest.mark.parametrize("name", RIGHT)
def test_a_right_one_passes(checked: Checked, name: str) -> None:
    found = [*checked.regional(RIGHT[name], 4), *checked.whole(RIGHT[name], 4)]
    assert found
    assert all(each.passed for each in found), [str(each) for each in found if not each.passed]


def test_there_are_many_mutants() -> None:
    assert len(MUTANTS) >= 50
