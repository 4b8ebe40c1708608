"""The commands `taso-mirage substitutions list | show | explain | verify | generate`.

Heavy modules are imported when the commands run.
"""

from __future__ import annotations

import json
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from taso_mirage.cli.options import LARGEST_COUNT
from taso_mirage.devices.machine import cores
from taso_mirage.errors import CheckFailed, InvalidOption, TasoMirageError
from taso_mirage.system.terminal import say

if TYPE_CHECKING:
    from collections.abc import Sequence
    from contextlib import AbstractContextManager

    from taso_mirage.measure.cluster import Cluster
    from taso_mirage.prove.rules.recheck import RuleVerdict
    from taso_mirage.rewriting.library import Rule

app = typer.Typer(
    no_args_is_help=True,
    rich_markup_mode=None,
    help="List, explain, verify or generate the library of proved substitutions.",
)

Library = Annotated[
    Path | None, typer.Option("--library", metavar="DIR", help="Folder of rules (default: the shipped library).")
]
Name = Annotated[str, typer.Argument(help="The rule's name, or the beginning of it.", metavar="NAME")]
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON object instead of text.")]
_Workers = Annotated[
    int | None,
    typer.Option(min=1, max=LARGEST_COUNT, metavar="N", help="Number of processes (default: one for each core)."),
]

_Scheduler = Annotated[
    str | None,
    typer.Option(metavar="ADDRESS", help="Use the workers of this Dask scheduler (tcp://host:8786)."),
]


def _require_one(workers: int | None, scheduler: str | None) -> None:
    if workers is not None and scheduler is not None:
        raise InvalidOption("--workers and --scheduler exclude each other: the scheduler has its own workers")


@app.command("list")
def list_(
    texts: Annotated[list[str] | None, typer.Argument(help="Text in the name or the equation.", metavar="TEXT")] = None,
    operator: Annotated[
        list[str] | None, typer.Option(metavar="OPERATOR", help="Only rules with this operator; repeatable.")
    ] = None,
    family: Annotated[
        list[str] | None, typer.Option(metavar="FAMILY", help="Only rules of this family; repeatable.")
    ] = None,
    library: Library = None,
    as_json: AsJson = False,
) -> None:
    """List the rules that contain every TEXT and every --operator: name, operators, proof,
    equation."""
    from taso_mirage.operators.ops import get
    from taso_mirage.report.rule_in_words import chosen, equation_text, rule_data

    for name in operator or []:
        try:
            get(name)
        except KeyError as error:
            raise InvalidOption(f"--operator {name}: {error.args[0]}; rules have names such as matmul") from None
    rules = _rules(library)
    families = {r.family for r in rules}
    for name in family or []:
        if name not in families:
            raise InvalidOption(f"--family {name}: the families are {', '.join(sorted(families)) or 'none'}")
    found = chosen(rules, texts or [], operator or [], family or [])
    if as_json:
        say(json.dumps({"rules": [rule_data(r) for r in found], "of": len(rules)}, indent=2))
        return
    width = max((len(r.name) for r in found), default=0)
    for rule in found:
        kind = rule.evidence.proof.kind if rule.evidence.proof is not None else "-"
        say(f"{rule.name:{width}}  {rule.operators}  {kind:8}  {equation_text(rule)}")
    say(f"{len(found)} of {len(rules)} rules", err=True)


@app.command()
def show(name: Name, library: Library = None, as_json: AsJson = False) -> None:
    """Show one rule: its sides, guard, typing and evidence."""
    from taso_mirage.report.rule_in_words import find_rule, rule_data, shown_rule

    rule = find_rule(_rules(library), name)
    say(json.dumps(rule_data(rule), indent=2) if as_json else "\n".join(shown_rule(rule)))


@app.command()
def explain(
    name: Name,
    output: Annotated[
        Path, typer.Option("-o", "--output", metavar="DIR", help="Output folder for the picture and the models.")
    ] = Path("."),
    library: Library = None,
) -> None:
    """Describe one rule in words, draw its sides (NAME.svg), and write each as an ONNX model
    (NAME-lhs.onnx, NAME-rhs.onnx)."""
    from taso_mirage.report.drawing import draw
    from taso_mirage.report.rule_in_words import find_rule, shown_rule, words
    from taso_mirage.system.files import file_name, write_file

    rule = find_rule(_rules(library), name)
    say("\n".join(["\n".join(shown_rule(rule)), "", *words(rule), ""]))
    picture = output / f"{file_name(rule.name)}.svg"
    write_file(picture, draw(rule))
    say(f"wrote {picture}")
    try:
        written = _write_pair(rule, output)
    except TasoMirageError as error:
        say(f"no ONNX models: {error}")
        return
    say(f"wrote {', '.join(map(str, written))}; to run and compare them:\n")
    say(SCRIPT.format(path=(output / file_name(rule.name)).as_posix()))


SCRIPT = """\
import numpy as np, onnxruntime as ort
options = ort.SessionOptions()
options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL  # as written, not as fused
path = {path!r}
inputs = dict(np.load(path + ".npz"))
lhs, rhs = (ort.InferenceSession(f"{{path}}-{{side}}.onnx", options).run(None, inputs) for side in ("lhs", "rhs"))
print(all(np.allclose(a, b, rtol=1e-3, atol=1e-4, equal_nan=True) for a, b in zip(lhs, rhs, strict=True)))"""


def _write_pair(rule: Rule, folder: Path) -> list[Path]:
    """Write both sides of a rule as models, with inputs for them; return the files."""
    import io

    import numpy as np

    from taso_mirage.ir.model import random_inputs
    from taso_mirage.onnx_io import save
    from taso_mirage.onnx_io.pairs import pair
    from taso_mirage.system.files import file_name, write_file

    made, name = pair(rule), file_name(rule.name)
    written = [*save(made.lhs, folder / f"{name}-lhs.onnx"), *save(made.rhs, folder / f"{name}-rhs.onnx")]
    packed = io.BytesIO()
    np.savez(packed, **random_inputs(made.lhs, seed=0))  # type: ignore[arg-type]
    write_file(folder / f"{name}.npz", packed.getvalue())
    return [*written, folder / f"{name}.npz"]


_Files = Annotated[
    list[Path] | None, typer.Argument(help="Files of rules (default: the shipped ones).", metavar="FILE")
]
_Names = Annotated[
    list[str] | None, typer.Option(metavar="NAME", help="Only rules whose name begins with NAME; repeatable.")
]
_Typings = Annotated[
    int, typer.Option(min=1, max=LARGEST_COUNT, metavar="N", help="Number of random legal typings of every rule.")
]
_Laws = Annotated[
    bool,
    typer.Option(
        "--laws",
        help="Verify the laws of the operators instead of rules. A law does not apply where it is not proved.",
    ),
]
_Strict = Annotated[
    bool,
    typer.Option("--strict", help="Exit with code 5 also if a rule is bounded, which means not proved in every case."),
]
_Record = Annotated[
    Path | None,
    typer.Option(
        metavar="DIR",
        help="With --laws: write the cases of each law into this folder of a library; with --rule, keep the other laws.",
    ),
]


@app.command()
def verify(
    files: _Files = None,
    rule: _Names = None,
    seed: Annotated[
        int, typer.Option(min=0, max=LARGEST_COUNT, metavar="N", help="Seed of the random trials and typings.")
    ] = 1,
    typings: _Typings = 320,
    workers: _Workers = None,
    scheduler: _Scheduler = None,
    laws: _Laws = False,
    strict: _Strict = False,
    record: _Record = None,
    as_json: AsJson = False,
) -> None:
    """Verify rules as they are stated: draw typings of every kind, and prove or refute each case.

    Exit code 5 if a rule fails.
    """
    from taso_mirage.prove.rules.recheck import law_rules, recheck_bar, recheck_rules

    _require_one(workers, scheduler)
    if laws and files:
        raise InvalidOption("--laws and FILE exclude each other: laws stand beside their operators")
    if record is not None and not laws:
        raise InvalidOption("--record is for laws: with --laws")
    stated = law_rules() if laws else None
    rules = _selected(files or [], rule or [], stated)
    with _used_workers(scheduler) as there, recheck_bar(len(rules), quiet=as_json) as progress:
        executor, count = (None, workers or cores()) if there is None else (there.executor(), there.count)
        verdicts = list(recheck_rules(rules, seed, typings, count, progress, laws, executor))
    if record is not None and stated is not None:
        _record_cases(record, stated, verdicts, others=bool(rule))
    _say_verdicts(verdicts, as_json)
    _require_proved(verdicts, strict)


def _used_workers(scheduler: str | None) -> AbstractContextManager[Cluster | None]:
    if scheduler is None:
        return nullcontext()
    from taso_mirage.measure.cluster import cluster

    return cluster(scheduler, None)


def _record_cases(folder: Path, laws: Sequence[Rule], verdicts: Sequence[RuleVerdict], others: bool) -> None:
    """Write the cases of the verified laws, and if asked those recorded of the `others`."""
    from taso_mirage.generate.readme import recorded_laws, write_laws

    judged = (recorded_laws(folder) if others else {}) | {v.name: v.cases for v in verdicts}
    write_laws(folder, {law.name: judged[law.name] for law in laws if law.name in judged})


def _say_verdicts(verdicts: Sequence[RuleVerdict], as_json: bool) -> None:
    from taso_mirage.prove.rules.recheck import exclusions, failures, verdict_table

    bad = failures(verdicts)
    if as_json:
        say(json.dumps({"rules": [v.as_dict() for v in verdicts], "failed": len(bad)}, indent=2))
        return
    say("\n".join([verdict_table(verdicts), *exclusions(verdicts)]))
    for verdict in bad:
        say(f"\n{verdict.name} {verdict.problem}")


def _require_proved(verdicts: Sequence[RuleVerdict], strict: bool) -> None:
    """Raise CheckFailed where a rule failed, or, if `strict`, is bounded."""
    from taso_mirage.prove.rules.recheck import failures

    if bad := failures(verdicts):
        raise CheckFailed(f"{len(bad)} of {len(verdicts)} rules failed: {', '.join(v.name for v in bad[:5])}")
    if open_ones := [v.name for v in verdicts if v.kind == "bounded"] if strict else []:
        raise CheckFailed(
            f"{len(open_ones)} of {len(verdicts)} rules are bounded, which --strict refuses: "
            f"{', '.join(open_ones[:5])}; a larger --typings proves more of their cases"
        )


def _selected(files: list[Path], names: list[str], stated: Sequence[Rule] | None = None) -> list[Rule]:
    from taso_mirage.rewriting.library import read

    rules = [r for file in files for r in read(file)] if files else list(_rules(None) if stated is None else stated)
    for name in names:
        if not any(r.name.startswith(name) for r in rules):
            raise InvalidOption(f"--rule {name}: no rule begins so; `substitutions list` shows all")
    found = [r for r in rules if not names or any(r.name.startswith(n) for n in names)]
    if not found:
        raise InvalidOption("there are no rules to verify")
    return found


@app.command()
def generate(
    ops: Annotated[
        int, typer.Option(min=1, max=LARGEST_COUNT, metavar="N", help="Largest number of operators of a side.")
    ] = 4,
    family: Annotated[
        list[str] | None, typer.Option(metavar="FAMILY", help="Only this family; repeatable (default: all).")
    ] = None,
    seed: Annotated[
        int,
        typer.Option(
            min=0,
            max=LARGEST_COUNT,
            metavar="N",
            help="Random seed; a seed always gives the same files, byte for byte.",
        ),
    ] = 0,
    workers: _Workers = None,
    scheduler: _Scheduler = None,
    resume: Annotated[bool, typer.Option("--resume", help="Continue an interrupted run.")] = False,
    output: Annotated[Path, typer.Option("-o", "--output", metavar="DIR", help="Output folder.")] = Path(
        "substitutions"
    ),
) -> None:
    """Generate the library: enumerate, fingerprint, prune, generalise and prove.

    The result does not depend on the number of workers.
    """
    from taso_mirage.generate import pipeline

    _require_one(workers, scheduler)
    options = pipeline.GenerateOptions(ops, tuple(family or ()), seed, workers or cores(), scheduler, resume, output)
    try:
        pipeline.generate(options)
    except BaseException:
        if any((output / ".partial").glob("*.json*")):
            say(f"the progress is kept in {output / '.partial'}; continue with --resume", err=True)
        raise


def _rules(library: Path | None) -> tuple[Rule, ...]:
    from taso_mirage.rewriting.library import load_rules

    if library is not None and not library.is_dir():
        raise InvalidOption(f"--library {library}: no such folder")
    return load_rules(library)
