"""Regions whose kernels are for fixed sizes, or for one sample."""

from __future__ import annotations

from collections.abc import Mapping
from unittest.mock import patch

from taso_mirage.ir.model import Model
from taso_mirage.regions import free_regions
from taso_mirage.regions.batches import EqualRegions
from taso_mirage.regions.fragments import RegionSite


def sample_regions(
    model: Model, sizes: Mapping[str, int], batched: bool
) -> tuple[dict[EqualRegions, list[RegionSite]], set[str]]:
    """The regions of a model on a GPU as if no kernel could read its sizes at run time."""
    with patch.object(free_regions, "free_kind", lambda *given: None):
        return free_regions.free_regions(model, sizes, 4, batched)
