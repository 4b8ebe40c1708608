"""A new user's first minutes: a virtual environment, a wheel of this checkout with its dependencies
from an index, the quick start, and the tutorials, away from the checkout; with REQUIREMENT also the
extra `torch` of the wheel, and the pages about PyTorch.

    python -m tests.new_user FOLDER [REQUIREMENT]
    python -m tests.new_user FOLDER --page

FOLDER must be empty or new. REQUIREMENT is a build of PyTorch, such as `torch` or
`torch==2.13.0+cpu`, where pip finds it (`PIP_EXTRA_INDEX_URL`, `PIP_FIND_LINKS`).
`TASO_MIRAGE_BUILD=cpu` takes the smaller build of ONNX Runtime. Each command is printed with its
output, and the first one that fails ends the run with its exit code. `--page` writes the first ones
and the quick start with their outputs as `docs/first_session.md`.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[1]
QUICK = "docs/quickstart.md"
TUTORIALS = tuple(f"docs/tutorials/{name}.md" for name in ("slow_model", "kernels", "rule", "operator", "tensorrt"))
PAGES = (QUICK, *TUTORIALS, "docs/json.md", "docs/folders.md")
TORCH = ("docs/torch.md", QUICK)
"""The pages of which the blocks that import PyTorch run once the extra is there."""
BLOCK = re.compile(r"(?<!-->\n)^```(sh|python)\n(.*?)^```", re.MULTILINE | re.DOTALL)
"""A block without a mark above it (`slow`, `not run`)."""
IMPORT, TESTS = "import torch", "pytest"
"""Texts of blocks that need the extra, and of those that need the checkout."""
FIRST = """python3 -m venv .venv
. .venv/bin/activate
pip install -q dist/*.whl
taso-mirage doctor
"""
PIP = re.compile(r"^WARNING: .*\n", re.MULTILINE)
"""Warnings of pip about the indexes of this machine."""
PAGE = ROOT / "docs" / "first_session.md"
INTRODUCTION = """# A first session

The commands of [Install](install.md) and of the [quick start](quickstart.md) with their outputs,
from a wheel in `dist/` (`python -m tests.new_user FOLDER --page` writes this page). `~` is the
folder of the session.

How to read the table of `optimize`: *predicted cost* is the sum of the costs of single operators,
*measured time* the time of the whole model, and *ratio* how many times as fast the optimized model
is, with its confidence interval. A number behind an equation is that of its places in the model.
[My model is slow](tutorials/slow_model.md) explains the other lines.

"""


@dataclass(frozen=True)
class Command:
    """A block of a page, in its language."""

    language: str
    text: str

    def arguments(self, python: Path) -> list[str]:
        return [str(python), "-c", self.text] if self.language == "python" else ["bash", "-euc", self.text]

    def shown(self) -> str:
        """The block as it is typed."""
        if self.language == "python":
            return f"$ python - <<'END'\n{self.text.strip()}\nEND\n"
        return f"$ {self.text.strip()}\n"


def blocks(page: str) -> list[Command]:
    return [Command(*found) for found in BLOCK.findall((ROOT / page).read_text())]


def commands(page: str) -> Iterator[Command]:
    """The commands of a page that a wheel alone runs."""
    return (each for each in blocks(page) if IMPORT not in each.text and TESTS not in each.text)


def torch_commands() -> Iterator[Command]:
    """The blocks of Python that import PyTorch, those of one page together."""
    for page in TORCH:
        if wanted := [each.text for each in blocks(page) if each.language == "python" and IMPORT in each.text]:
            yield Command("python", "\n".join(wanted))


def session(requirement: str) -> Iterator[Command]:
    """The commands from the first one on."""
    yield from (Command("sh", line) for line in FIRST.splitlines())
    for page in PAGES:
        yield from commands(page)
    if requirement:
        yield Command("sh", f'pip install -q "$(echo dist/*.whl)[torch]" "{requirement}"')
        yield from torch_commands()


def environment(folder: Path) -> dict[str, str]:
    """The variables of an activated virtual environment with a cache of its own."""
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("PYTHON", "VIRTUAL_ENV", "TASO_MIRAGE"))}
    path = f"{folder / '.venv' / 'bin'}{os.pathsep}{kept['PATH']}"
    return kept | {"PATH": path, "TASO_MIRAGE_CACHE": str(folder / ".cache" / "taso_mirage")}


def run(command: Command, folder: Path) -> tuple[int, str]:
    """The exit code and the output of a command, which is printed as it comes."""
    print(command.shown(), end="", flush=True)
    asked, lines = command.arguments(folder / ".venv" / "bin" / "python"), []
    options = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
    with subprocess.Popen(asked, cwd=folder, env=environment(folder), **options) as started:  # type: ignore[call-overload]
        for line in started.stdout:
            print(line, end="", flush=True)
            lines.append(line.rstrip() + "\n")
    return started.returncode, "".join(lines)


def main(folder: Path, option: str = "") -> int:
    folder = folder.resolve()
    folder.mkdir(parents=True, exist_ok=True)
    if any(folder.iterdir()):
        print(f"{folder} is not empty; name another folder")
        return 2
    (folder / "models").mkdir()
    shutil.copy(ROOT / "models" / "mini_transformer.onnx", folder / "models")
    wheel = [sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "-w", str(folder / "dist"), str(ROOT)]
    subprocess.run(wheel, check=True)
    page, listed = option == "--page", len(FIRST.splitlines()) + len(list(commands(QUICK)))
    asked, written = list(session("" if page else option)), []
    for command in asked[: listed if page else None]:
        code, output = run(command, folder)
        if code:
            return code
        written.append(command.shown() + PIP.sub("", output))
    if page:
        text = "\n".join(written).replace(str(folder), "~")
        PAGE.write_text(f"{INTRODUCTION}```text\n{text}```\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), *sys.argv[2:]))
