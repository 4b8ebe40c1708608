"""A new user's first minutes: a virtual environment, a wheel of this checkout with its dependencies
from an index, the quick start, and the tutorial of an operator, away from the checkout; then the
extra `torch` of the wheel, and the page about PyTorch.

    python -m tests.new_user FOLDER [REQUIREMENT]

FOLDER must be empty or new. REQUIREMENT chooses a build of PyTorch, such as `torch==2.13.0+cpu`,
where pip finds it (`PIP_EXTRA_INDEX_URL`, `PIP_FIND_LINKS`). Each command is printed with its
output, and the first one that fails ends the run with its exit code.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]
PAGES = ("docs/quickstart.md", "docs/tutorials/operator.md")
TORCH = ("docs/torch.md", "docs/quickstart.md")
"""The pages of which the blocks that import PyTorch run once the extra is there."""
BLOCK = re.compile(r"^```(sh|python)\n(.*?)^```", re.MULTILINE | re.DOTALL)
IMPORT, TESTS = "import torch", "pytest"
"""Texts of blocks that need the extra, and of those that need the checkout."""


def commands(python: Path) -> Iterator[list[str]]:
    """The commands of the pages that a wheel alone runs."""
    for page in PAGES:
        for language, text in BLOCK.findall((ROOT / page).read_text()):
            if IMPORT not in text and TESTS not in text:
                yield [str(python), "-c", text] if language == "python" else ["bash", "-euo", "pipefail", "-c", text]


def torch_commands(python: Path) -> Iterator[list[str]]:
    """The blocks of Python that import PyTorch, each with those of its page before it."""
    for page in TORCH:
        texts = [text for language, text in BLOCK.findall((ROOT / page).read_text()) if language == "python"]
        if wanted := [text for text in texts if IMPORT in text]:
            yield [str(python), "-c", "\n".join(wanted)]


def main(folder: Path, requirement: str = "") -> int:
    folder.mkdir(parents=True, exist_ok=True)
    if any(folder.iterdir()):
        print(f"{folder} is not empty; name another folder")
        return 2
    (folder / "models").mkdir()
    shutil.copy(ROOT / "models" / "mini_transformer.onnx", folder / "models")
    bin_folder = folder.resolve() / ".venv" / "bin"
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("PYTHON", "VIRTUAL_ENV", "TASO_MIRAGE"))}
    kept |= {"PATH": f"{bin_folder}{os.pathsep}{kept['PATH']}", "TASO_MIRAGE_CACHE": str(folder.resolve() / "cache")}
    python = bin_folder / "python"
    first = [
        [sys.executable, "-m", "venv", ".venv"],
        [str(python), "-m", "pip", "wheel", "-q", "--no-deps", "-w", "dist", str(ROOT)],
        ["bash", "-euc", "pip install -q dist/*.whl"],
        ["taso-mirage", "doctor"],
    ]
    extra = ["bash", "-euc", f'pip install -q "$(echo dist/*.whl)[torch]" {requirement}']
    for command in (*first, *commands(python), extra, *torch_commands(python)):
        print(f"$ {command[-1] if command[0] == 'bash' else ' '.join(command)}", flush=True)
        done = subprocess.run(command, cwd=folder, env=kept, check=False)
        if done.returncode:
            return done.returncode
    return 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), *sys.argv[2:]))
