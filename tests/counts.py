"""Counts of the code and the pages, one row for each count and one column for each commit:

    python -m tests.counts [COMMIT ...]

The last column is the checkout. Each column takes about two seconds.
"""

from __future__ import annotations

import ast
import re
import subprocess
import sys
import tarfile
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from io import BytesIO
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory

ROOT = Path(__file__).parent.parent
PACKAGE = "taso_mirage"
LEANING = re.compile(
    r"(Of|Those|These|That|The same|It|Its|What|Whatever|As|Both|Which|Whose|Who|Whether the same|They|Their|Them|Such"
    r"|Also|Else|So|And|But|Or|Nor|Neither|There|Others)\b"
)
"""Beginnings of docstrings that need their neighbour."""
WHAT = re.compile(r"\bwhat(ever)?\b", re.IGNORECASE)
PARTICIPLE = re.compile(r"_*(?!need|feed|seed|speed|embed|exceed|shed|bed)[a-z]+ed(_|$)")
"""Names of functions that begin with a participle, such as `joined_of`."""
PAGE_WORDS, FILE_LINES = 1500, 400


@dataclass
class Tree:
    """The sources of one commit: files of the package by dotted name, each parsed once."""

    root: Path
    trees: dict[str, ast.Module] = field(default_factory=dict)
    lines: dict[str, int] = field(default_factory=dict)
    packages: set[str] = field(default_factory=set)

    def __post_init__(self) -> None:
        for file in sorted((self.root / PACKAGE).rglob("*.py")):
            parts = file.relative_to(self.root).with_suffix("").parts
            name = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
            self.packages |= {name} if parts[-1] == "__init__" else set()
            text = file.read_text()
            self.trees[name], self.lines[name] = ast.parse(text), text.count("\n")

    def imports(self, name: str) -> Iterator[str]:
        """The modules of the package that a module imports, wherever the import stands."""
        for node in ast.walk(self.trees[name]):
            if isinstance(node, ast.Import):
                yield from (alias.name for alias in node.names if alias.name in self.trees)
            elif isinstance(node, ast.ImportFrom) and node.module:
                inner = [f"{node.module}.{alias.name}" for alias in node.names]
                yield from (each if each in self.trees else node.module for each in inner)


TOP = "(top)"
"""Modules of the package that are in no folder."""


def folder(tree: Tree, module: str) -> str:
    """The folder of the package that has a module; an `__init__.py` is its folder's."""
    parts = module.split(".")
    return parts[1] if len(parts) > 2 or module in tree.packages - {PACKAGE} else TOP


def functions(tree: Tree) -> list[ast.FunctionDef | ast.AsyncFunctionDef]:
    """Every function, methods among them."""
    kinds = (ast.FunctionDef, ast.AsyncFunctionDef)
    return [node for each in tree.trees.values() for node in ast.walk(each) if isinstance(node, kinds)]


def lengths(tree: Tree) -> list[int]:
    """The lines of every function."""
    return sorted((node.end_lineno or node.lineno) - node.lineno + 1 for node in functions(tree))


def docstrings(tree: Tree) -> list[str]:
    """The docstrings of modules, classes and functions."""
    kinds = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    every = (node for each in tree.trees.values() for node in ast.walk(each) if isinstance(node, kinds))
    return [ast.get_docstring(node) or "" for node in every]


def mutual(tree: Tree) -> int:
    """How many pairs of folders import each other."""
    arrows = {(folder(tree, name), folder(tree, other)) for name in tree.trees for other in tree.imports(name)}
    return sum((b, a) in arrows for a, b in arrows if a < b and TOP not in (a, b))


def counts(root: Path) -> Mapping[str, object]:
    """Every count of a checkout, by its name."""
    tree, found = Tree(root), dict[str, object]()
    by_folder: dict[str, int] = defaultdict(int)
    for name, lines in tree.lines.items():
        by_folder[folder(tree, name)] += lines
    names = Counter(name.split(".")[-1] for name in tree.trees if name.count(".") > 1)
    long, texts = lengths(tree), docstrings(tree)
    pages = [len(page.read_text().split()) for page in (root / "docs").rglob("*.md")]
    found |= {f"lines of {name}": by_folder[name] for name in sorted(by_folder)}
    found["lines of Python in the package"] = sum(tree.lines.values())
    found["files"] = len(tree.lines)
    found[f"files of more than {FILE_LINES} lines"] = sum(n > FILE_LINES for n in tree.lines.values())
    found["lines of a function: median, 90 %, most"] = f"{median(long):.0f}, {long[len(long) * 9 // 10]}, {long[-1]}"
    found["module names in several folders"] = sum(n > 1 for n in names.values())
    found["pairs of folders that import each other"] = mutual(tree)
    found["docstrings that begin without their subject"] = sum(LEANING.match(each) is not None for each in texts)
    found["docstrings with a clause of what"] = sum(WHAT.search(each) is not None for each in texts)
    found["functions named by a participle"] = sum(PARTICIPLE.match(each.name) is not None for each in functions(tree))
    found[f"pages of more than {PAGE_WORDS} words"] = sum(n > PAGE_WORDS for n in pages)
    found["words of the longest page"] = max(pages)
    return found


def main() -> None:
    columns = list[Mapping[str, object]]()
    for commit in sys.argv[1:]:
        done = subprocess.run(["git", "archive", commit, PACKAGE, "docs"], cwd=ROOT, capture_output=True, check=True)
        with TemporaryDirectory() as made, tarfile.open(fileobj=BytesIO(done.stdout)) as archive:
            archive.extractall(made, filter="data")
            columns.append(counts(Path(made)))
    columns.append(counts(ROOT))
    print("| count |", " | ".join([*sys.argv[1:], "checkout"]), "|")
    print("|---|" + "---:|" * len(columns))
    for name in dict.fromkeys(name for column in columns for name in column):
        print(f"| {name} |", " | ".join(str(column.get(name, "")) for column in columns), "|")


if __name__ == "__main__":
    main()
