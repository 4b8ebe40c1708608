"""The pages of docs/: the site builds without a warning, the code in their blocks runs, and the
pictures are up to date.

Blocks of `sh` and `python` run in a copy of the checkout, in their order: with small budgets and
one layer of the model, and in the slow test as they are. A block of `text` right behind one is its
output, with `...` for anything. Above a block may stand `<!-- slow -->`, or `<!-- not run: WHY
-->`.
"""

from __future__ import annotations

import ast
import doctest
import importlib.util
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
from scripts import ROOT
from sources import nodes
from typer.main import get_command

import taso_mirage
from taso_mirage import errors
from taso_mirage.cli.commands import app
from tests import new_user

DOCS = ROOT / "docs"
BLOCK = re.compile(
    r"(?:^<!-- (?P<mark>slow|not run: [^>]+) -->\n)?^```(?P<language>sh|python)\n(?P<text>.*?)^```\n"
    r"(?:\n```text\n(?P<shown>.*?)^```\n)?",
    re.MULTILINE | re.DOTALL,
)
ELSEWHERE = {"shipping.md": "test_runtime_shipped.py", "from_zero.md": "test_from_zero.py"}
"""Pages whose blocks other tests run."""
INCLUDED = ("CHANGELOG.md", "CONTRIBUTING.md", *(f"{name}/README.md" for name in ("bench", "models", "substitutions")))
"""Pages outside of `docs/` that the site has."""
SHOWN = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE


@dataclass(frozen=True)
class Block:
    """A fenced block: `text` in a language, its printed output (None: anything), and whether it is
    slow, or why it is not run."""

    language: str
    text: str
    shown: str | None
    mark: str

    def command(self) -> list[str]:
        if self.language == "python":
            return [sys.executable, "-c", self.text]
        return ["bash", "-euo", "pipefail", "-c", self.text]

    def parses(self) -> bool:
        if self.language == "sh":
            return subprocess.run(["bash", "-n", "-c", self.text], stderr=subprocess.DEVNULL).returncode == 0
        try:
            ast.parse(self.text)
        except SyntaxError:
            return False
        return True


def blocks(page: Path) -> list[Block]:
    found = (each.groupdict(default="") for each in BLOCK.finditer(page.read_text()))
    return [Block(b["language"], b["text"], b["shown"] or None, b["mark"]) for b in found]


PAGES = [page for page in (ROOT / "README.md", *sorted(DOCS.rglob("*.md"))) if page.name not in ELSEWHERE]
REPEATED = ("quickstart.md", "torch.md", "torch_fallback.md", "kernels.md", "rule.md", "json.md", "slow_model.md")
"""Pages of which the slow test alone runs the blocks: the README, the gallery and the tests of the
commands do the same."""
QUICK = [p for p in PAGES if p.name not in REPEATED and any(not b.mark for b in blocks(p))]
SLOW = [p for p in PAGES if any(b.mark in ("", "slow") for b in blocks(p))]


def named(page: Path) -> str:
    return str(page.relative_to(ROOT))


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A copy of the checkout, with its compiled files: pages write files into it, and an
    operator."""
    hidden = shutil.ignore_patterns(".*", "results")
    return Path(shutil.copytree(ROOT, tmp_path / "checkout", ignore=hidden))


def environment(checkout: Path) -> dict[str, str]:
    path = os.pathsep.join((str(Path(sys.executable).parent), os.environ["PATH"]))
    return {**os.environ, "PATH": path, "PYTHONPATH": str(checkout)}


SECONDS = re.compile(r"(--budget |budget=|\"budget\": )\d+")


def within(text: str, budget: int) -> str:
    """The text with another budget, if one is given."""
    return SECONDS.sub(rf"\g<1>{budget}", text) if budget else text


COMPARED = {"native": "SPINNING = ", "session": "ROUNDS, FEW, MOST = 15, 7, "}
"""The lines of modules of `measure` with the time for which runs wait for each other, and with the
number of comparisons."""


def hasten(checkout: Path) -> None:
    """No page is about how fast a model is: in the copy, comparisons have no pauses and few
    rounds."""
    for name, line in COMPARED.items():
        file = checkout / "taso_mirage" / "measure" / f"{name}.py"
        text, found = re.subn(rf"^({line})[\d.]+$", r"\g<1>0", file.read_text(), flags=re.MULTILINE)
        assert found == 1
        file.write_text(text)


def ran(page: Path, marks: tuple[str, ...], checkout: Path, budget: int = 0) -> list[Block]:
    """The blocks of a page with one of these marks, each run as a user would type it, from the
    first to the last; with another budget, if one is given."""
    found = [block for block in blocks(page) if block.mark in marks]
    for block in found:
        if block.language == "python" and "import torch" in block.text:
            pytest.importorskip("torch")
        done = subprocess.run(
            replace(block, text=within(block.text, budget)).command(),
            cwd=checkout,
            env=environment(checkout),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=600,
        )
        assert done.returncode == 0, f"{block.text}\n{done.stdout}"
        if block.shown is not None:
            assert doctest.OutputChecker().check_output(block.shown, done.stdout, SHOWN), f"{block.text}\n{done.stdout}"
    return found


@pytest.mark.sampled(4)
@pytest.mark.parametrize("page", QUICK, ids=named)
def test_the_blocks_of_a_page_run(page: Path, checkout: Path, layer: Path) -> None:
    shutil.copy(layer, checkout / "models" / "mini_transformer.onnx")
    hasten(checkout)
    assert ran(page, ("",), checkout, budget=3)


@pytest.mark.slow
@pytest.mark.parametrize("page", SLOW, ids=named)
def test_all_blocks_of_a_page_run(page: Path, checkout: Path) -> None:
    assert ran(page, ("", "slow"), checkout)


@pytest.mark.lint
def test_every_block_is_one_of_its_language() -> None:
    assert [block.text for page in SLOW for block in blocks(page) if not block.parses()] == []
    assert not Block("sh", "if", None, "").parses()
    assert not Block("python", "if", None, "").parses()


@pytest.mark.lint
def test_every_block_is_run_or_says_why_not() -> None:
    """A fence that the pattern does not see would never run."""
    for page in PAGES:
        fences = re.findall(r"^ *```(?:sh|bash|shell|console|python|py)\b", page.read_text(), re.MULTILINE)
        assert len(fences) == len(blocks(page)), named(page)
    assert len(QUICK) >= 5
    assert len(SLOW) >= 11
    assert all(any(ROOT.glob(f"tests/*/{test}")) and (DOCS / page).exists() for page, test in ELSEWHERE.items())


@pytest.mark.sampled(5)
@pytest.mark.parametrize("budget", [6, pytest.param(0, marks=pytest.mark.slow)])
@pytest.mark.parametrize("script", sorted((DOCS / "gallery").glob("*.py")), ids=lambda path: path.stem)
def test_the_gallery_runs(script: Path, budget: int, checkout: Path, layer: Path) -> None:
    if budget:
        shutil.copy(layer, checkout / "models" / "mini_transformer.onnx")
        hasten(checkout)
    copied = checkout / script.relative_to(ROOT)
    copied.write_text(within(copied.read_text(), budget))
    done = subprocess.run(
        [sys.executable, copied], cwd=checkout, env=environment(checkout), capture_output=True, text=True, timeout=600
    )
    assert done.returncode == 0, done.stderr
    assert len(done.stdout.splitlines()) >= 4


@pytest.mark.lint("docs", "taso_mirage", *INCLUDED)
def test_the_site_builds_without_a_warning(tmp_path: Path) -> None:
    if importlib.util.find_spec("sphinx") is None:
        pytest.skip("the extra `docs` is not installed")
    command = [sys.executable, "-m", "sphinx", "-W", "--keep-going", "-q", "-d", tmp_path / "trees", DOCS, tmp_path]
    done = subprocess.run(command, capture_output=True, text=True, env=environment(ROOT))
    assert done.returncode == 0, done.stderr
    pages = {str(page.relative_to(DOCS).with_suffix(".html")) for page in DOCS.rglob("*.md")} - {"plugin/README.html"}
    assert pages <= {str(page.relative_to(tmp_path)) for page in tmp_path.rglob("*.html")}
    api = (tmp_path / "api.html").read_text()
    assert [name for name in taso_mirage.__all__ if f'id="taso_mirage.{name}"' not in api] == []


@pytest.mark.lint
def test_no_page_has_a_placeholder() -> None:
    """The repository has no address yet, so no page names one."""
    listed = subprocess.run(
        ["git", "ls-files", "*.md", "*.toml", "*.y*ml", "docs/*.py"], cwd=ROOT, capture_output=True, text=True
    )
    files = [ROOT / name for name in listed.stdout.split()] or [*DOCS.rglob("*.md"), *ROOT.glob("*.*")]
    assert [str(file) for file in files if "OWNER" + "/" in file.read_text()] == []


@pytest.mark.lint
def test_versions_of_examples_are_this_one() -> None:
    page = (DOCS / "teams.md").read_text()
    assert set(re.findall(r"rev: v(\d[\d.]*)", page)) == {taso_mirage.__version__}


@pytest.mark.slow
def test_the_pictures_are_those_of_today(tmp_path: Path) -> None:
    subprocess.run([sys.executable, DOCS / "pictures.py", tmp_path], check=True, env=environment(ROOT))
    drawn = {path.name: path.read_text() for path in tmp_path.iterdir()}
    kept = {path.name: path.read_text() for path in (DOCS / "pictures").glob("*.svg")}
    assert drawn == kept, "run `python docs/pictures.py`"


@pytest.mark.lint("docs", "taso_mirage")
def test_the_page_of_commands_has_every_option() -> None:
    text, root = (DOCS / "commands.md").read_text(), get_command(app)
    commands = {**root.commands, **root.commands["substitutions"].commands}
    assert [name for name in commands if f"{name}" not in text] == []
    options = {o for each in commands.values() for p in each.params for o in p.opts if o.startswith("--")}
    assert sorted(o for o in options if f"`{o}" not in text and f", `{o}" not in text) == []


@pytest.mark.lint("docs", "tests")
def test_the_first_session_has_the_commands_of_today() -> None:
    """`python -m tests.new_user FOLDER --page` writes it."""
    text = new_user.PAGE.read_text()
    assert text.startswith(new_user.INTRODUCTION)
    said = [line for line in new_user.FIRST.splitlines() if f"$ {line}" not in text]
    said += [each.text for each in new_user.commands(new_user.QUICK) if each.shown() not in text]
    assert said == []


@pytest.mark.slow
def test_a_new_user_gets_through(tmp_path: Path) -> None:
    done = subprocess.run([sys.executable, "-m", "tests.new_user", tmp_path / "user"], cwd=ROOT)
    assert done.returncode == 0


# ---------------------------------------------------------------- the page of errors

TROUBLES = "\n".join((DOCS / f"{page}.md").read_text() for page in ("troubleshooting", "messages", "notes"))


def said_in_the_sources() -> Iterator[str]:
    for file in (ROOT / "taso_mirage").rglob("*.py"):
        for node in nodes(file):
            if isinstance(node, ast.Constant) and isinstance(node.value, str):
                yield " ".join(node.value.split())


@pytest.mark.lint("docs", "taso_mirage")
def test_every_message_of_the_page_is_one_of_the_package() -> None:
    messages = [m for line in TROUBLES.splitlines() for m in re.findall(r"^\| `([^`]+)`", line)]
    assert len(messages) >= 40
    sources = "\n".join(said_in_the_sources())
    parts = {m: re.split(r"\.\.\.|(?:^| )--[a-z-]+(?: [A-Z]+| thorough)?", m) for m in messages}
    assert [m for m, said in parts.items() if not all(part.strip() in sources for part in said)] == []


@pytest.mark.lint("docs", "taso_mirage")
def test_the_page_has_every_class_of_error_and_every_exit_code() -> None:
    classes = [each for each in vars(errors).values() if isinstance(each, type) and issubclass(each, Exception)]
    assert [each.__name__ for each in classes if f"`{each.__name__}`" not in TROUBLES] == []
    codes = {each.exit_code for each in classes if hasattr(each, "exit_code")}
    commands = [path.read_text() for path in (ROOT / "taso_mirage" / "cli").glob("*.py")]
    codes |= {int(code) for text in commands for code in re.findall(r"sys\.exit\((\d+)\)", text)}
    listed = {int(code) for code in re.findall(r"^\| (\d+) \|", TROUBLES, re.MULTILINE)}
    assert codes | {0} <= listed
