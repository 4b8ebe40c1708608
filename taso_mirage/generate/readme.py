"""The page of the library, its counts, the cases of the laws, and its timings: all files in
`substitutions/` except the rules."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path

from taso_mirage.rewriting.library import PROOF_KINDS, RejectedRule, Rule, read, read_rejected
from taso_mirage.system.files import write_file

_Counts = Mapping[str, Mapping[str, int]]
"""For every family the count of each stage of the generator, stages in their order."""
MEANING = {
    "symbolic": "every case that was examined is proved for every size",
    "bounded": "some cases are proved only at their own sizes, or only compared in numbers",
}


def refresh(folder: Path, counts: _Counts | None = None) -> None:
    """Write README.md (and counts.json, if there are new counts) from the files of the folder."""
    path = folder / "counts.json"
    if counts is not None:
        write_file(path, json.dumps(counts, indent=2) + "\n")
    elif path.exists():
        counts = json.loads(path.read_text(encoding="utf-8"))
    files = sorted(f for f in folder.glob("*.toml") if f.name != "rejected.toml")
    rejected = folder / "rejected.toml"
    refuted = read_rejected(rejected) if rejected.exists() else ()
    rules = [r for f in files for r in read(f)]
    write_file(folder / "README.md", readme(rules, refuted, counts or {}, recorded_laws(folder)))


def recorded_laws(folder: Path) -> dict[str, Mapping[str, int]]:
    """Return the cases of each law by verdict from laws.json; none if the file does not exist."""
    path = folder / "laws.json"
    found: dict[str, Mapping[str, int]] = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    return found


def write_laws(folder: Path, cases: _Counts) -> None:
    """Write laws.json, which contains the cases of each law by verdict, and the page."""
    rows = [f"  {json.dumps(name)}: {json.dumps(dict(found), sort_keys=True)}" for name, found in cases.items()]
    write_file(folder / "laws.json", "{\n" + ",\n".join(rows) + "\n}\n")
    refresh(folder)


def write_timings(folder: Path, seconds: Mapping[str, float]) -> None:
    """Write timings.json: the seconds of the proof of each rule. Only this file differs from run to
    run."""
    rounded = {name: round(seconds[name], 3) for name in sorted(seconds)}
    write_file(folder / "timings.json", json.dumps(rounded, indent=1) + "\n")


def readme(rules: Sequence[Rule], rejected: Sequence[RejectedRule], counts: _Counts, laws: _Counts) -> str:
    """The page: counts by family, size and proof, stages, and the commands.

    The same library gives the same bytes.
    """
    families = sorted({r.family for r in rules})
    joint = sum(len(r.equation.roots) > 1 for r in rules)
    lines = [
        "# Substitutions",
        "",
        "`taso-mirage substitutions generate` writes this page. The rules are in the same folder, in one file for each family.",
        "",
        f"{len(rules)} rules: {len(rules) - joint} replace one value, {joint} replace several values at once.",
        f"{len(rejected)} candidates were refuted; `rejected.toml` contains each with its counterexample.",
        "",
        "## By family and size",
        "",
        "The size of a rule is the number of operators of its larger side.",
        "",
        *_by_size(rules, families),
        "",
        "## By family and proof",
        "",
        *_by_proof(rules, families),
        "",
        *(f"- {kind}: {MEANING[kind]}" for kind in PROOF_KINDS),
        "",
        "## By family and case",
        "",
        "A case is an application without its sizes. A rule applies only in its proved cases. The optimizer judges excluded cases,",
        "and cases that were not examined here, when they match.",
        "",
        *_by_case(rules, families),
        "",
        *_of_laws(laws),
        *_stages(counts),
        "## Reading a rule",
        "",
        "`given` is one typing of the operands; dims are letters, and the dtype is float32 if none is given. `attributes` are the",
        "values of the attribute names in that typing. The equation holds over the reals wherever its left side matches and `where`",
        "is true.",
        "",
        "## Commands",
        "",
        "    taso-mirage substitutions list --operator conv --operator concat",
        "    taso-mirage substitutions explain NAME -o DIR",
        "    taso-mirage substitutions verify",
        "    taso-mirage substitutions verify --laws --record DIR",
        "    taso-mirage substitutions generate -o DIR",
        "",
        "The same seed gives the same files, byte for byte; only `timings.json` differs.",
    ]
    return "\n".join(lines) + "\n"


def _by_size(rules: Sequence[Rule], families: Sequence[str]) -> list[str]:
    sizes = sorted({r.operators for r in rules})
    count = Counter((r.family, r.operators) for r in rules)
    return _table(["family", *map(str, sizes), "all"], families, lambda f: [count[f, n] for n in sizes])


def _by_proof(rules: Sequence[Rule], families: Sequence[str]) -> list[str]:
    kinds = [*PROOF_KINDS, *(["none"] if any(r.evidence.proof is None for r in rules) else [])]
    count = Counter((r.family, r.evidence.proof.kind if r.evidence.proof is not None else "none") for r in rules)
    return _table(["family", *kinds, "all"], families, lambda f: [count[f, k] for k in kinds])


def _by_case(rules: Sequence[Rule], families: Sequence[str]) -> list[str]:
    """The number of judged cases of the rules of each family, by verdict."""
    evidence = [(r.family, r.evidence) for r in rules]

    def row(f: str) -> list[int]:
        own = [(e.cases - e.bounded, e.bounded, e.excluded) for family, e in evidence if family == f]
        return [sum(column) for column in zip(*own, strict=True)]

    return _table(["family", "proved for every size", "bounded", "excluded", "all"], families, row)


def _of_laws(laws: _Counts) -> list[str]:
    """The number of cases of all laws by verdict, and the laws that have excluded cases."""
    if not laws:
        return []
    proved, bounded = (sum(found.get(status, 0) for found in laws.values()) for status in ("proved", "bounded"))
    without = {
        name: sum(found.values()) - found.get("proved", 0) - found.get("bounded", 0) for name, found in laws.items()
    }
    return [
        "## Laws by case",
        "",
        f"{len(laws)} laws are stated beside the operators in `op_specs/`; `laws.json` contains the cases of each. A law does not",
        "apply in an excluded case. The optimizer determines this; no guard states it.",
        "",
        _line(["laws", "proved for every size", "bounded", "excluded", "all"]),
        _line(["---", *["---:"] * 4]),
        _line([len(laws), proved, bounded, sum(without.values()), proved + bounded + sum(without.values())]),
        "",
        "Laws with excluded cases: " + (", ".join(f"{name} ({n})" for name, n in without.items() if n) or "none") + ".",
        "",
    ]


def _table(head: Sequence[str], families: Sequence[str], row: Callable[[str], list[int]]) -> list[str]:
    """A table of counts, with the sum of every row and column."""
    rows = [row(f) for f in families]
    totals = [sum(column) for column in zip(*rows, strict=True)]
    body = [_line([f, *r, sum(r)]) for f, r in zip(families, rows, strict=True)]
    return [_line(head), _line(["---", *["---:"] * (len(head) - 1)]), *body, _line(["all", *totals, sum(totals)])]


def _stages(counts: _Counts) -> list[str]:
    """A row for every stage, a column for every family."""
    if not counts:
        return []
    stages = list(dict.fromkeys(stage for each in counts.values() for stage in each))
    rows = [_line([stage, *(each.get(stage, "") for each in counts.values())]) for stage in stages]
    head = [_line(["stage", *counts]), _line(["---", *["---:"] * len(counts)])]
    said = "The number of terms, classes or equations after each stage. `minimise.py` keeps an equation only if smaller ones do not"
    intro = [said, 'derive it; "steps a side" is the number of rewrites of each side in that test.', ""]
    return ["## Stages of the generator", "", *intro, *head, *rows, ""]


def _line(cells: Iterable[object]) -> str:
    return f"| {' | '.join(map(str, cells))} |"
