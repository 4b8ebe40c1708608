"""The files and commands that CONTRIBUTING.md and .pre-commit-config.yaml name exist."""

from __future__ import annotations

import re
import shlex
import shutil
import sys
from pathlib import Path

import pytest
import yaml
from scripts import ROOT

from tests.lint import TOOLS

pytestmark = pytest.mark.lint
PAGE = (ROOT / "CONTRIBUTING.md").read_text()
HOOKS = [h for r in yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text())["repos"] for h in r["hooks"]]


@pytest.mark.parametrize("hook", HOOKS, ids=[hook["id"] for hook in HOOKS])
def test_a_hook_runs_a_tool_of_the_environment_on_files_that_exist(hook: dict[str, str]) -> None:
    program, *arguments = shlex.split(hook["entry"])
    assert hook["language"] == "system"
    assert shutil.which(program, path=str(Path(sys.executable).parent))
    assert [a for a in arguments if "/" in a and not (ROOT / a).exists()] == []


def test_hooks_run_the_lint_of_the_test_command() -> None:
    entries = {hook["entry"] for hook in HOOKS}
    assert "python -m tests.lint" in entries
    assert "\npython -m tests.lint" in (ROOT / "tests" / "run").read_text()
    tools = [" ".join(each[2:]).removesuffix(" .") for each in TOOLS]
    assert {tool.replace(" --check", "") for tool in tools if tool.startswith("ruff")} <= {
        entry.removesuffix(" --force-exclude") for entry in entries
    }


def test_tests_and_folders_of_the_page_exist() -> None:
    tests = set(re.findall(r"`(test_\w+\.py)`", PAGE))
    assert len(tests) >= 20
    assert sorted(name for name in tests if not any((ROOT / "tests").rglob(name))) == []
    folders = re.findall(r"`([\w/]+/)`", PAGE)
    known = [(ROOT / f).is_dir() or (ROOT / "taso_mirage" / f).is_dir() for f in folders]
    assert [f for f, there in zip(folders, known, strict=True) if not there] == []
