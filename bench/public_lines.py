"""The lines of `public.py`: one finding about a model and a tool each, and their counts.

The first line of a file names the benchmark, the device and the versions. A second run with the
same file goes on where the first one ended, and files of several machines are counted together.
"""

from __future__ import annotations

import json
import sys
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "bench")]

from public_judge import KINDS, RIGHT, UNVERIFIED, Verdict  # noqa: E402

NOT_JUDGED = "not judged"
"""The kind of the only line about a model that cannot be judged; its tool is the empty string."""
CERTIFIED = "certified"
"""The key of lines about results with a certificate."""
SHOWN = 40
"""The largest number of findings of a tool that a row lists."""
Line = dict[str, Any]


class Lines:
    """The findings of a file, which is made if it is not there. Raises SystemExit if the file is of
    other versions."""

    def __init__(self, path: Path, head: Mapping[str, Any]) -> None:
        self.path = path
        if path.exists():
            earlier, self.found = read(path)
            path.write_text("".join(json.dumps(each) + "\n" for each in (earlier, *self.found)))
            if differing := [name for name in head if head[name] != earlier.get(name)]:
                name = differing[0]
                raise SystemExit(
                    f"{path} is of {name} {earlier.get(name)}, and this run of {head[name]}: name another file"
                )
        else:
            self.found = []
            path.write_text(json.dumps(head) + "\n")

    def has(self, model: str, tools: Sequence[str]) -> list[str]:
        """The tools whose finding about the model is there; all of them if it cannot be judged."""
        there = {line["tool"] for line in self.found if line["model"] == model}
        return [*tools] if "" in there else [tool for tool in tools if tool in there]

    def add(self, model: str, tool: str, found: Verdict, seconds: float) -> None:
        line: Line = {"model": model, "tool": tool, "kind": found.kind, "why": found.why, "seconds": round(seconds, 2)}
        line |= {CERTIFIED: True} if found.certified else {}
        self.found.append(line)
        with self.path.open("a") as file:
            file.write(json.dumps(line) + "\n")


def read(path: Path) -> tuple[dict[str, Any], list[Line]]:
    """The head and the findings; a last line that is not whole is left out."""
    head, *lines = path.read_text().splitlines(keepends=True)
    return json.loads(head), [json.loads(line) for line in lines if line.endswith("\n")]


def merged(paths: Iterable[Path]) -> tuple[dict[str, Any], list[Line]]:
    """The findings of several files, which may be of other tools, but not of other versions of one;
    the last finding about a model and a tool counts."""
    heads, found = [], dict[tuple[str, str], Line]()
    for path in paths:
        head, lines = read(path)
        heads.append(head)
        found |= {(line["model"], line["tool"]): line for line in lines}
    versions: dict[str, str] = {}
    for name, version in (pair for head in heads for pair in head["versions"].items()):
        if versions.setdefault(name, version) != version:
            raise SystemExit(f"the files are of {name} {versions[name]} and {version}")
    return {**heads[0], "versions": versions}, [*found.values()]


def counted(lines: Sequence[Line], tools: Sequence[str]) -> list[dict[str, Any]]:
    """For each corpus (the word before the colon of a model's name) the numbers of models, and a
    row for each tool that can be judged on one of them."""
    corpora: dict[str, list[Line]] = {}
    for line in lines:
        corpora.setdefault(line["model"].partition(":")[0], []).append(line)
    return [
        {
            "corpus": corpus,
            "judged": len({line["model"] for line in some if line["tool"]}),
            NOT_JUDGED: dict(Counter(line["why"] for line in some if not line["tool"]).most_common()),
            "rows": [_row(tool, found) for tool in tools if (found := _judged(some, tool))],
        }
        for corpus, some in corpora.items()
    ]


def _judged(lines: Sequence[Line], tool: str) -> list[Line]:
    return [line for line in lines if line["tool"] == tool and line["kind"] != NOT_JUDGED]


def _row(tool: str, lines: Sequence[Line]) -> dict[str, Any]:
    counts = Counter(line["kind"] for line in lines)
    findings = [{k: line[k] for k in ("model", "kind", "why")} for line in lines if line["kind"] != RIGHT]
    seconds = round(sum(line["seconds"] for line in lines), 1)
    certified = any(line.get(CERTIFIED) for line in lines)
    kinds = {kind: counts[kind] for kind in KINDS if kind != UNVERIFIED or certified}
    return {"case": tool, "models": len(lines), **kinds, "seconds": seconds, "findings": findings[:SHOWN]}
