"""Tools of teams beside the command line: the GitHub Action, the pre-commit hooks, the containers
and the shell's completion. Their commands run here as they stand in the files."""

from __future__ import annotations

import fnmatch
import os
import re
import shlex
import shutil
import subprocess
import sys
import venv
from pathlib import Path
from typing import Any

import pytest
import yaml
from commandline import run
from scripts import ROOT
from small_models import relus

ACTION = yaml.safe_load((ROOT / "action.yml").read_text())
HOOKS = {hook["id"]: hook for hook in yaml.safe_load((ROOT / ".pre-commit-hooks.yaml").read_text())}
RULE = '[[rule]]\nname = "mine.twice"\ngiven = "x: (m, n)"\nlhs = "add(x, x)"\nrhs = "mul(x, {})"\n'


@pytest.fixture
def program(tmp_path: Path) -> dict[str, str]:
    """An environment in which `taso-mirage` is that of this checkout."""
    folder = tmp_path / "bin"
    folder.mkdir()
    (folder / "taso-mirage").write_text(f'#!/bin/sh\nexec {sys.executable} -m taso_mirage.cli "$@"\n')
    (folder / "taso-mirage").chmod(0o755)
    return {**os.environ, "PATH": f"{folder}{os.pathsep}{os.environ['PATH']}", "PYTHONPATH": str(ROOT)}


@pytest.fixture
def noted(tmp_path: Path) -> dict[str, str]:
    """An environment in which `taso-mirage` only writes its arguments to a file: a zero byte ends
    each argument, and a line ends each call."""
    folder = tmp_path / "noting"
    folder.mkdir()
    (folder / "taso-mirage").write_text('#!/bin/sh\nprintf "%s\\0" "$@" >>"$NOTES"\nprintf "\\n\\0" >>"$NOTES"\n')
    (folder / "taso-mirage").chmod(0o755)
    path = f"{folder}{os.pathsep}{os.environ['PATH']}"
    return {**os.environ, "PATH": path, "NOTES": str(tmp_path / "notes")}


def shell(command: list[str], environment: dict[str, str], cwd: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, env=environment, cwd=cwd, capture_output=True, text=True, timeout=600)


# ---------------------------------------------------------------- the action


def expanded(text: str, inputs: dict[str, str]) -> str:
    """The text that GitHub makes of `${{ ... }}`; an expression that the action does not have is an
    error here."""
    known = {f"inputs.{name}": value for name, value in inputs.items()} | {"github.action_path": str(ROOT)}
    return re.sub(r"\$\{\{ *([^ ]+) *\}\}", lambda found: known[found[1]], text)


def step(name: str) -> dict[str, Any]:
    (found,) = (each for each in ACTION["runs"]["steps"] if each.get("name") == name)
    return dict(found)


def told(text: str) -> dict[str, str]:
    """The outputs of a step, as GitHub reads the file: `NAME=VALUE`, or lines up to a delimiter."""
    found, lines = {}, iter(text.split("\n")[:-1])
    for line in lines:
        name, several, end = line.partition("<<")
        if several and "=" not in name:
            found[name] = "\n".join(iter(lambda: next(lines), end))
        else:
            name, _, found[name] = line.partition("=")
    return found


def optimized(given: dict[str, str], program: dict[str, str], cwd: Path) -> tuple[int, dict[str, str]]:
    """The exit code and the outputs of the step that optimizes."""
    given = {name: str(each.get("default", "")) for name, each in ACTION["inputs"].items()} | given
    optimize = step("Optimize")
    variables = {name: expanded(value, given) for name, value in optimize["env"].items()}
    assert "${{" not in optimize["run"], "what is given would be a part of the script"
    out = cwd.parent / f"{cwd.name}.github_output"
    command = ["bash", "-eo", "pipefail", "-c", optimize["run"]]
    done = shell(command, program | variables | {"GITHUB_OUTPUT": str(out)}, cwd)
    return done.returncode, told(out.read_text())


def calls(noted: dict[str, str]) -> list[list[str]]:
    """The arguments of every call of `taso-mirage`."""
    return [call.split("\0")[:-1] for call in Path(noted["NOTES"]).read_text().split("\n\0")[:-1]]


@pytest.mark.sampled(3)
def test_the_action_optimizes_a_folder(tmp_path: Path, program: dict[str, str]) -> None:
    work = tmp_path / "work"
    relus(work / "my models" / "a.onnx", 2)
    assert all(each["shell"] == "bash" for each in ACTION["runs"]["steps"] if "run" in each)
    given = {"models": "my models", "options": "--no-measure --portable", "budget": "5"}
    assert optimized(given, program, work) == (0, {"output": "optimized"})
    assert {p.name for p in (work / "optimized").iterdir()} == {"a.onnx", "a.onnx.html", "index.html", "index.json"}
    assert ACTION["outputs"]["output"]["value"] == "${{ steps.optimize.outputs.output }}"
    assert step("Optimize")["id"] == "optimize"


HOSTILE = (
    "$(touch planted)",
    "`touch planted`",
    "; touch planted",
    'a"; touch planted; "',
    "* ?",
    "x\nother=1\nmore<<x",
)


@pytest.mark.parametrize("text", HOSTILE)
def test_what_is_given_to_the_action_is_data(tmp_path: Path, noted: dict[str, str], text: str) -> None:
    """Names and options with all that a shell, or the file of outputs, would understand."""
    work, quick = tmp_path / "work", "--no-measure --kernels off"
    work.mkdir()
    (work / "a.onnx").touch()  # a pattern would find it
    given = {"models": text, "output": f"out {text}", "budget": "0", "options": quick}
    assert optimized(given, noted, work) == (0, {"output": f"out {text}"})
    assert optimized(given | {"options": f"{quick} {text}"}, noted, work)[0] == 0
    assert optimized(given | {"budget": f"0 {text}"}, noted, work)[0] == 0
    out, *rest = f"--output=out {text}", "--", text
    assert calls(noted) == [
        ["optimize", *quick.split(), out, "--budget=0", *rest],
        ["optimize", *quick.split(), *text.split(), out, "--budget=0", *rest],
        ["optimize", *quick.split(), out, f"--budget=0 {text}", *rest],
    ]
    assert [p.name for p in work.iterdir()] == ["a.onnx"]


@pytest.mark.sampled(3)
def test_a_model_of_the_action_is_no_option(tmp_path: Path, program: dict[str, str]) -> None:
    work = tmp_path / "work"
    relus(work / "--help", 2)
    given = {"models": "--help", "output": "--version", "budget": "0", "options": "--no-measure --kernels off"}
    assert optimized(given, program, work) == (0, {"output": "--version"})
    assert (work / "--version").exists()


def test_the_action_installs_what_it_is_part_of() -> None:
    install = step("Install")
    assert expanded(install["env"]["SOURCE"], {}) == str(ROOT)
    assert shlex.split(install["run"])[:4] == ["python", "-m", "pip", "install"]
    assert (ROOT / "pyproject.toml").exists()


@pytest.mark.lint
def test_the_workflows_of_the_page_fit_the_action() -> None:
    page = (ROOT / "docs" / "teams.md").read_text()
    workflows = [yaml.safe_load(text) for text in re.findall(r"^```yaml\n(.*?)^```", page, re.MULTILINE | re.DOTALL)]
    steps = [s for w in workflows if "jobs" in w for job in w["jobs"].values() for s in job["steps"]]
    ours = [s for s in steps if s.get("uses") == "./taso_mirage"]
    assert ours
    for each in ours:
        assert set(each["with"]) <= set(ACTION["inputs"])
        assert {name for name, i in ACTION["inputs"].items() if i.get("required")} <= set(each["with"])
    hooks = [hook["id"] for w in workflows if "repos" in w for repo in w["repos"] for hook in repo["hooks"]]
    assert sorted(hooks) == sorted(HOOKS)


# ---------------------------------------------------------------- the hooks


def hooked(name: str, files: list[str], program: dict[str, str], cwd: Path) -> int:
    """The exit code of a hook on the files that it is for, as pre-commit calls it."""
    hook = HOOKS[name]
    chosen = [f for f in files if re.search(hook["files"], f) and not re.search(hook.get("exclude", "^$"), f)]
    assert chosen
    return shell([*shlex.split(hook["entry"]), *chosen], program, cwd).returncode


@pytest.mark.sampled(3)
def test_the_hook_for_rules_refuses_a_wrong_one(tmp_path: Path, program: dict[str, str]) -> None:
    (tmp_path / "rules").mkdir()
    (tmp_path / "rules" / "good.toml").write_text(RULE.format("2.0"))
    (tmp_path / "rules" / "rejected.toml").write_text("not looked at")
    files = ["rules/good.toml", "rules/rejected.toml", "other.toml"]
    assert hooked("taso-mirage-rules", files, program, tmp_path) == 0
    (tmp_path / "rules" / "bad.toml").write_text(RULE.format("3.0").replace("twice", "thrice"))
    assert hooked("taso-mirage-rules", [*files, "rules/bad.toml"], program, tmp_path) == 5


@pytest.mark.sampled(2)
def test_the_hook_for_models_refuses_what_is_none(tmp_path: Path, program: dict[str, str]) -> None:
    relus(tmp_path / "a b.onnx", 2)
    assert hooked("taso-mirage-models", ["a b.onnx", "text.txt"], program, tmp_path) == 0
    (tmp_path / "b.onnx").write_text("no model")
    assert hooked("taso-mirage-models", ["a b.onnx", "b.onnx"], program, tmp_path) == 3


def test_hooks_have_what_pre_commit_asks_for() -> None:
    for hook in HOOKS.values():
        assert {"id", "name", "entry", "language", "files"} <= set(hook)
        assert hook["language"] == "python"
        assert shlex.split(hook["entry"])


# ---------------------------------------------------------------- the containers

DOCKERFILES = sorted((ROOT / "docker").glob("*.Dockerfile"))


def instructions(path: Path) -> list[tuple[str, str]]:
    lines = [line for line in path.read_text().splitlines() if line.strip() and not line.startswith("#")]
    joined = re.sub(r"\\\n *", "", "\n".join(lines))
    return [(kind, rest) for kind, _, rest in (line.partition(" ") for line in joined.splitlines())]


def steps_of(path: Path) -> list[list[str]]:
    """The commands of RUN, those that `&&` joins apart."""
    runs = [shlex.split(rest) for kind, rest in instructions(path) if kind == "RUN"]
    return [part.split("\0") for run in runs for part in "\0".join(run).split("\0&&\0")]


def context(target: Path) -> Path:
    """The content that `COPY . /src` copies: the build context, less the files that .dockerignore
    leaves out."""
    lines = (ROOT / ".dockerignore").read_text().splitlines()
    assert lines[0] == "*"
    hidden = shutil.ignore_patterns("__pycache__")
    target.mkdir()
    for name in (line[1:] for line in lines if line.startswith("!")):
        source = ROOT / name
        if source.is_dir():
            shutil.copytree(source, target / name, ignore=hidden)
        else:
            shutil.copy(source, target / name)
    return target


@pytest.mark.lint
@pytest.mark.parametrize("path", DOCKERFILES, ids=lambda p: p.name)
def test_a_container_is_of_a_user_and_starts_the_command(path: Path) -> None:
    parts = instructions(path)
    kinds = [kind for kind, _ in parts]
    assert kinds[0] == "FROM"
    assert ("COPY", ". /src") in parts
    assert ("ENTRYPOINT", '["taso-mirage"]') in parts
    assert kinds.index("USER") > max(i for i, kind in enumerate(kinds) if kind == "RUN")
    assert all(step[0] in ("apt-get", "rm", "python", "useradd") for step in steps_of(path))
    version = re.fullmatch(r"python:3\.(\d+)-slim", dict(parts)["FROM"])
    assert version is not None
    assert 11 <= int(version[1]) < 14
    assert len(DOCKERFILES) == 2


def test_the_build_context_has_what_the_wheel_is_made_of(tmp_path: Path) -> None:
    made = context(tmp_path / "src")
    text = (ROOT / "pyproject.toml").read_text()
    for name in re.findall(r'^"([\w/.]+)" = "taso_mirage/', text, re.MULTILINE):
        assert (made / name).exists()
    assert fnmatch.filter([p.name for p in made.iterdir()], "*.toml") == ["pyproject.toml"]
    assert {"hatch_build.py", "LICENSE"} <= {p.name for p in made.iterdir()}


@pytest.mark.slow
@pytest.mark.parametrize("path", DOCKERFILES, ids=lambda p: p.name)
def test_the_pip_steps_of_a_container_run(path: Path, tmp_path: Path) -> None:
    """In a fresh environment. With CUDA's gigabytes they are resolved, not downloaded."""
    source = context(tmp_path / "src")
    venv.create(tmp_path / "venv", with_pip=True)
    python = tmp_path / "venv" / "bin" / "python"
    kept = {k: v for k, v in os.environ.items() if not k.startswith("PYTHON")}
    steps = [step for step in steps_of(path) if step[:3] == ["python", "-m", "pip"]]
    assert steps
    for step in steps:
        command = [str(python), *(re.sub(r"^/src", str(source), word) for word in step[1:])]
        command += ["--dry-run"] if "cuda" in step[-1] else []
        done = subprocess.run(command, env=kept, capture_output=True, text=True, timeout=1500)
        assert done.returncode == 0, done.stderr[-3000:]
        assert "cuda" not in step[-1] or "Would install" in done.stdout
    if not any("cuda" in step[-1] for step in steps):
        done = subprocess.run([python.with_name("taso-mirage"), "--help"], env=kept, capture_output=True, text=True)
        assert "Exit codes" in done.stdout


# ---------------------------------------------------------------- completion


@pytest.mark.parametrize(
    ("words", "found"),
    [
        ("taso-mirage opt", {"optimize"}),
        ("taso-mirage optimize --allow", {"--allow-rounding"}),
        ("taso-mirage substitutions ver", {"verify"}),
    ],
)
def test_the_shell_completes(words: str, found: set[str], program: dict[str, str], tmp_path: Path) -> None:
    asked = {
        "_TASO_MIRAGE_COMPLETE": "complete_bash",
        "COMP_WORDS": words,
        "COMP_CWORD": str(len(words.split()) - 1),
    }
    command = "import sys; sys.argv = ['taso-mirage']; from taso_mirage.cli import main; main()"
    done = shell([sys.executable, "-c", command], program | asked, tmp_path)
    assert set(done.stdout.split()) == found


def test_the_scripts_of_completion_are_shown() -> None:
    assert "--install-completion" in run("--help").stdout
