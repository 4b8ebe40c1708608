"""What all tests share: a cost cache of their own, so that no test reads or fills the user's."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent.parent))  # for `models`, which is not part of the package


@pytest.fixture(autouse=True, scope="session")
def own_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TASO_MIRAGE_CACHE", str(tmp_path_factory.mktemp("cache")))
        yield
