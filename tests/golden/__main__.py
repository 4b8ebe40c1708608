"""Compares the texts of generated programs with the kept ones.

    python -m tests.golden                    names the texts whose digest is another one
    python -m tests.golden --against COMMIT   prints the differences from the texts of a commit
    python -m tests.golden --write FOLDER     writes every text to a file
    python -m tests.golden --update           keeps the digests of these texts
    python -m tests.golden --search           searches the kept muGraphs again (minutes)

Exit code 1: a text differs, is new, or is missing. Many tests that run generated programs run on
one of several days; after a change of the texts the following command runs all of their cases:

    python -m pytest -m "sampled and not slow" -n 2 tests/{emit,forms,mugraph,regions}
"""

from __future__ import annotations

import argparse
import difflib
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path

from .digests import KEPT, differences, digest

ROOT = Path(__file__).parent.parent.parent
ALL_CASES = 'python -m pytest -m "sampled and not slow" -n 2 tests/{emit,forms,mugraph,regions}'
"""The command that runs all cases of the sampled tests of generated programs."""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    one = parser.add_mutually_exclusive_group()
    one.add_argument("--against", metavar="COMMIT")
    one.add_argument("--write", type=Path, metavar="FOLDER")
    one.add_argument("--update", action="store_true")
    one.add_argument("--search", action="store_true")
    given = parser.parse_args()
    if given.search:
        return search_again()
    from .catalogue import texts

    found = dict(texts())
    if given.write:
        return written(found, given.write)
    if given.update:
        digests = {name: digest(text) for name, text in sorted(found.items())}
        changed = differences(found)
        KEPT.write_text(json.dumps(digests, indent=0) + "\n")
        if changed:
            print(f"{len(changed)} texts differ; run all cases of the tests that run them: {ALL_CASES}")
        return 0
    shown = list(differing_lines(given.against, found)) if given.against else differences(found)
    print("\n".join(shown or [f"{len(found)} texts, all as they were"]))
    return 1 if shown else 0


def search_again() -> int:
    from .catalogue import SEARCHED
    from .search import searched

    SEARCHED.write_text(json.dumps(searched(), separators=(",", ":")) + "\n")
    return 0


def written(found: Mapping[str, str], folder: Path) -> int:
    """Each text in a file of its name."""
    for name, text in found.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return 0


def differing_lines(commit: str, found: Mapping[str, str]) -> Iterator[str]:
    """The differences of these texts from those that a commit writes, as `diff -u` prints them."""
    with tempfile.TemporaryDirectory() as temporary:
        tree, before = Path(temporary) / "tree", Path(temporary) / "texts"
        git = ["git", "-C", str(ROOT), "worktree"]
        subprocess.run([*git, "add", "--quiet", "--detach", str(tree), commit], check=True)
        try:
            command = [sys.executable, "-m", "tests.golden", "--write", str(before)]
            subprocess.run(command, cwd=tree, env=os.environ | {"PYTHONPATH": str(tree)}, check=True)
        finally:
            subprocess.run([*git, "remove", "--force", str(tree)], check=True)
        known = {str(path.relative_to(before)): path.read_text() for path in before.rglob("*") if path.is_file()}
    for name in sorted({*known, *found}):
        old, new = (texts.get(name, "").splitlines() for texts in (known, found))
        yield from difflib.unified_diff(old, new, f"{commit}/{name}", name, lineterm="")


if __name__ == "__main__":
    sys.exit(main())
