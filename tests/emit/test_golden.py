"""Generated programs are, text for text, those whose digests are kept in `golden/digests.json`.

A change that is to change a text says so: `python -m tests.golden --against COMMIT` prints the
differences, `--update` keeps the new digests.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from golden import digests

from taso_mirage.forms.base.form import known_forms


@pytest.fixture
def kept(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    path = tmp_path / "digests.json"
    monkeypatch.setattr(digests, "KEPT", path)
    return path


def test_generated_texts_are_the_kept_ones() -> None:
    from golden.catalogue import texts

    assert digests.differences(dict(texts())) == []


def test_every_form_has_a_text() -> None:
    from golden.catalogue import cpu_graphs, gpu_graphs

    nodes = [node for _, graph in (*gpu_graphs(), *cpu_graphs()) for node in graph]
    bodies = [dict(node.attrs)["body"] for node in nodes if node.op == "kernel"]
    written = {node.op for graph in (nodes, *bodies) for node in graph}
    assert {form.program.op for form in known_forms()} <= written


def test_another_text_a_new_one_and_a_missing_one_are_named(kept: Path) -> None:
    kept.write_text(f'{{"a": "{digests.digest("x = 1")}", "b": "{digests.digest("y = 1")}", "c": "0"}}')
    assert digests.differences({"a": "x = 1", "b": "y = 2", "d": ""}) == ["missing: c", "changed: b", "new: d"]
