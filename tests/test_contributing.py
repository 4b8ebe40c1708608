"""What CONTRIBUTING.md and .pre-commit-config.yaml name is there."""

from __future__ import annotations

import re
import shlex
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from scripts import ROOT

pytestmark = pytest.mark.lint
PAGE = (ROOT / "CONTRIBUTING.md").read_text()
HOOKS = [h for r in yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text())["repos"] for h in r["hooks"]]


@pytest.mark.parametrize("hook", HOOKS, ids=[hook["id"] for hook in HOOKS])
def test_a_hook_runs_a_tool_of_the_environment_on_files_that_exist(hook: dict[str, Any]) -> None:
    program, *arguments = shlex.split(hook["entry"])
    assert hook["language"] == "system"
    assert shutil.which(program, path=str(Path(sys.executable).parent))
    assert [a for a in arguments if "/" in a and not (ROOT / a).exists()] == []


def test_hooks_have_the_lint_of_the_test_command() -> None:
    command = "python -m tests.lint"
    assert command in (ROOT / "tests" / "run").read_text()
    assert command in [hook["entry"] for hook in HOOKS if hook.get("stages") == ["pre-push"]]


def test_tests_and_folders_of_the_page_exist() -> None:
    tests = set(re.findall(r"`(test_\w+\.py)`", PAGE))
    assert len(tests) >= 20
    assert sorted(name for name in tests if not any((ROOT / "tests").rglob(name))) == []
    folders = re.findall(r"`([\w/]+/)`", PAGE)
    known = [(ROOT / f).is_dir() or (ROOT / "taso_mirage" / f).is_dir() for f in folders]
    assert [f for f, there in zip(folders, known, strict=True) if not there] == []
