"""The pages of docs/design/ are short, have a figure, and show the stages of today."""

from __future__ import annotations

import runpy
from pathlib import Path

import pytest
from scripts import ROOT

pytestmark = pytest.mark.lint("docs", "taso_mirage/pipeline")
DOCS = ROOT / "docs"
PAGES = sorted((*(DOCS / "design").glob("*.md"), *(DOCS / "decisions").glob("*.md")))


@pytest.mark.parametrize("page", PAGES, ids=lambda page: f"{page.parent.name}/{page.name}")
def test_a_page_is_short_and_one_of_the_design_has_a_figure(page: Path) -> None:
    text = page.read_text()
    assert len(text.split()) <= 1500
    assert page.parent.name == "decisions" or "![" in text or "```text" in text


def test_the_picture_of_the_stages_has_those_of_the_pipeline() -> None:
    drawn = runpy.run_path(str(DOCS / "pictures.py"))["stages"]()
    assert drawn == (DOCS / "pictures" / "stages.svg").read_text(), "run `python docs/pictures.py`"
