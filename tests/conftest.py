"""What all tests share: a cost cache of their own, so that no test reads or fills the user's, and models built once."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path

import onnx
import pytest

sys.path.insert(0, str(Path(__file__).parent.parent))  # for `models`, which is not part of the package


@pytest.fixture(autouse=True, scope="session")
def own_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TASO_MIRAGE_CACHE", str(tmp_path_factory.mktemp("cache")))
        yield


@pytest.fixture(scope="session")
def small() -> Callable[..., onnx.ModelProto]:
    """`models.build` in the small configuration; every model is built once a session and not to be changed."""
    import models

    return cache(lambda name, **options: models.build(name, **options))
