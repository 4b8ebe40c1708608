"""The check of regions finds wrong rewrites deep in convolutional models, with evaluations of the
whole model switched off."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from deep_convolutions import Convolutional, ImageSizes, image_mutants
from deep_mutants import planted

from taso_mirage.measure.compared import ClaimedModel
from taso_mirage.measure.reference import FloatReference
from taso_mirage.measure.regional import RegionalCheck
from taso_mirage.measure.session import open_in_child
from taso_mirage.measure.target import CPU
from taso_mirage.measure.whole import cases_by_runs

MANY = 40
"""Terms of a float64 evaluation that is one of the whole model."""
MUTANTS = image_mutants()


@pytest.fixture(scope="module")
def made() -> Convolutional:
    return Convolutional(ImageSizes())


@pytest.fixture(scope="module")
def regions(made: Convolutional) -> Iterator[RegionalCheck]:
    patch, given = pytest.MonkeyPatch(), FloatReference.__call__

    def small(self: FloatReference, *args: object) -> object:
        assert len(self.model.nodes()) < MANY
        return given(self, *args)  # type: ignore[arg-type]

    patch.setattr(FloatReference, "__call__", small)
    yield RegionalCheck(made.model, list(cases_by_runs(made.model, open_in_child(made.model, CPU), made.model.sizes)))
    patch.undo()


@pytest.mark.sampled(3)
@pytest.mark.parametrize("name", MUTANTS)
def test_a_wrong_rewrite_deep_in_images_is_found(made: Convolutional, regions: RegionalCheck, name: str) -> None:
    found = planted(made, MUTANTS[name], 1 + list(MUTANTS).index(name) % (made.sizes.layers - 1))
    differences = regions.differences(ClaimedModel(found.model, CPU, found.claims, {}))
    assert any(not each.passed for each in differences)


def test_there_are_many_mutants_of_images() -> None:
    assert len(MUTANTS) >= 50
