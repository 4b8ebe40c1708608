"""JSON schemas: those that ship are made from the types of today, hold for every file that ships,
and refuse the values that the readers refuse; `optimize --json` prints lines of its schema, and
nothing else."""

from __future__ import annotations

import importlib.util
import json
import tomllib
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from commandline import Done, one_line, result_of, run, run_apart
from jsonschema import Draft202012Validator
from scripts import ROOT
from small_models import relus

from taso_mirage import api
from taso_mirage.cli.interrupt import CtrlC
from taso_mirage.errors import CheckFailed, InvalidOption, SyntaxProblem
from taso_mirage.generate.family import FOLDER as FAMILIES
from taso_mirage.generate.family import read_family
from taso_mirage.rewriting.library import operator_count, parse_rules, read
from taso_mirage.system.toml import table, toml

pytestmark = pytest.mark.sampled(2)

SCHEMAS = ROOT / "taso_mirage" / "schemas"
MINI = ROOT / "models" / "mini_transformer.onnx"


def validator(name: str) -> Draft202012Validator:
    schema = json.loads((SCHEMAS / f"{name}.schema.json").read_text())
    Draft202012Validator.check_schema(schema)
    return Draft202012Validator(schema)


@pytest.mark.lint("taso_mirage", "docs", "substitutions", "tests/equations")
def test_the_schemas_are_those_of_the_types(tmp_path: Path) -> None:
    path = ROOT / "docs" / "schemas.py"
    spec = importlib.util.spec_from_file_location("schemas", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    module.main(tmp_path)
    made = {file.name: file.read_text() for file in tmp_path.iterdir()}
    assert made == {file.name: file.read_text() for file in SCHEMAS.iterdir()}, "run `python docs/schemas.py`"
    assert set(module.SCHEMAS) == {name.removesuffix(".schema.json") for name in made}
    for name, schema in made.items():
        assert run("schema", name.removesuffix(".schema.json")).stdout == schema
    assert "no schema is called '../x'" in one_line(run("schema", "../x", check=2))


# ---------------------------------------------------------------- files of rules and families

RULES = [
    *(f for f in sorted((ROOT / "substitutions").glob("*.toml")) if f.name != "rejected.toml"),
    *sorted((ROOT / "docs").rglob("rules/*.toml")),
    *sorted((ROOT / "tests" / "equations").glob("*.toml")),
]
SHIPPED = [
    *((file, "rules") for file in RULES),
    (ROOT / "substitutions" / "rejected.toml", "rejected"),
    *((file, "family") for file in sorted(FAMILIES.glob("*.toml"))),
]


@pytest.mark.lint("taso_mirage", "docs", "substitutions", "tests/equations")
@pytest.mark.parametrize(("file", "schema"), SHIPPED, ids=lambda value: getattr(value, "stem", value))
def test_every_file_that_ships_has_its_schema(file: Path, schema: str) -> None:
    content = tomllib.loads(file.read_text())
    assert [error.message for error in validator(schema).iter_errors(content)] == []
    if "$schema" in content:
        assert (file.parent / content["$schema"]).resolve() == SCHEMAS / f"{schema}.schema.json"


@pytest.mark.lint("taso_mirage", "docs", "substitutions", "tests/equations")
def test_families_say_where_their_schema_is() -> None:
    assert len(list(FAMILIES.glob("*.toml"))) >= 5
    assert all('"$schema" = ' in file.read_text() for file in FAMILIES.glob("*.toml"))


RULE = {"name": "mine.twice", "given": "x: (m, n)", "lhs": "add(x, x)", "rhs": "mul(x, 2.0)"}


def as_toml(entry: dict[str, Any]) -> str:
    return table("[[rule]]", entry)


def without(field: str) -> dict[str, Any]:
    return {key: value for key, value in RULE.items() if key != field}


WRONG = {
    "no-name": (without("name"), "rule number 1: the field name is missing; add it"),
    "no-lhs": (without("lhs"), "rule mine.twice: the field lhs is missing; add it"),
    "no-given": (without("given"), "rule mine.twice: the field given is missing; add it"),
    "misspelt": (RULE | {"were": "true"}, "rule mine.twice: no field is called were; the fields are attributes, evidence"),
    "number": (RULE | {"lhs": 3}, "rule mine.twice, field lhs: 3 is no str"),
    "truth": (RULE | {"operators": True}, "rule mine.twice, field operators: True is no int"),
    "evidence": (RULE | {"evidence": {"case": 1}}, "rule mine.twice, field evidence: no field is called case"),
    "proof": (RULE | {"evidence": {"proof": "sure"}}, "field evidence, field proof: 'sure' is none of symbolic, bounded"),
}  # fmt: skip
NONSENSE = {
    "no-term": (RULE | {"lhs": "add(x"}, "rule mine.twice, field lhs: "),
    "no-operator": (RULE | {"lhs": "sum_up(x, x)"}, "rule mine.twice, field lhs: "),
    "no-type": (RULE | {"given": "x: (m"}, "rule mine.twice, field given: "),
    "no-variable": (RULE | {"rhs": "mul(y, 2.0)"}, "rule mine.twice, field where: 'y' names y"),
}


@pytest.mark.parametrize(("entry", "said"), [*WRONG.values(), *NONSENSE.values()], ids=[*WRONG, *NONSENSE])
@pytest.mark.parametrize("command", [("substitutions", "verify"), ("optimize", MINI, "--rules")], ids=lambda c: c[0])
def test_a_wrong_rule_is_one_sentence_and_exit_code_2(
    entry: dict[str, Any], said: str, command: tuple[Any, ...], tmp_path: Path
) -> None:
    path = tmp_path / "mine.toml"
    path.write_text(as_toml(entry))
    line = one_line(run(*command, path, check=2))
    assert f"{path}: " in line
    assert said in line
    assert "`taso-mirage schema rules` describes " in line


@pytest.mark.parametrize(("entry", "said"), WRONG.values(), ids=WRONG)
def test_the_schema_refuses_what_the_reader_refuses(entry: dict[str, Any], said: str) -> None:
    rules = validator("rules")
    assert not rules.is_valid({"rule": [entry]})
    assert rules.is_valid({"rule": [RULE]})
    assert not rules.is_valid({"rules": [RULE]})


def test_the_number_of_operators_is_counted() -> None:
    (rule,) = parse_rules(as_toml(RULE | {"lhs": "neg(add(x, x))"}))
    assert rule.operators == 2
    (said,) = parse_rules(as_toml(RULE | {"operators": 7}))
    assert said.operators == 7
    counted = [(r.operators, operator_count(r.equation)) for r in read(ROOT / "substitutions" / "elementwise.toml")]
    assert all(said <= count for said, count in counted)  # a pattern of a family may be several terms
    assert sum(said == count for said, count in counted) > len(counted) / 2


def test_a_file_may_name_its_schema() -> None:
    text = '"$schema" = "rules.schema.json"\n' + as_toml(RULE)
    assert parse_rules(text) == parse_rules(as_toml(RULE))
    with pytest.raises(SyntaxProblem, match=r"only \[\[rule\]\] is expected, not schema"):
        parse_rules('schema = "x"\n' + as_toml(RULE))


FAMILY = {
    "about": "sums",
    "assignments": [{"trials": 4, "sizes": {"n": 2}}],
    "recheck": [{"trials": 4, "sizes": {"n": 3}}],
    "elements": 10,
    "inputs": [{"name": "x", "count": 2, "kind": "row", "shape": "(n,)"}],
    "operators": {"add": {"term": "add(a, b)", "commutative": True}},
}


def family_toml(content: dict[str, Any]) -> str:
    return "".join(f"{key} = {toml(value)}\n" for key, value in content.items())


WRONG_FAMILIES = {
    "no-elements": ({k: v for k, v in FAMILY.items() if k != "elements"}, "the field elements is missing"),
    "more": (FAMILY | {"element": 3}, "no field is called element;"),
    "no-table": (FAMILY | {"inputs": [3]}, "inputs number 1 is no table"),
    "no-shape": (FAMILY | {"inputs": [{"name": "x", "kind": "row"}]}, "inputs number 1: the field shape is missing"),
    "sizes": (FAMILY | {"recheck": [{"trials": 4, "sizes": 3}]}, "recheck number 1, field sizes: 3 is no dict"),
    "operator": (FAMILY | {"operators": {"add": {"term": "add(a, b)", "commute": True}}}, "operator add: no field is called"),
}  # fmt: skip


@pytest.mark.parametrize(("content", "said"), WRONG_FAMILIES.values(), ids=WRONG_FAMILIES)
def test_wrong_families_name_file_entry_and_next_step(content: dict[str, Any], said: str, tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    path.write_text(family_toml(content))
    with pytest.raises(InvalidOption) as error:
        read_family(path)
    assert str(error.value).startswith(str(path))
    assert said in str(error.value)
    assert "`taso-mirage schema family` describes" in str(error.value)
    assert not validator("family").is_valid(tomllib.loads(path.read_text()))


def test_a_right_family_is_read_and_has_the_schema(tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    path.write_text(family_toml(FAMILY))
    assert [each.name for each in read_family(path).operators] == ["add"]
    assert validator("family").is_valid(tomllib.loads(path.read_text()))
    for term in ("add(a", "nothing(a)"):
        path.write_text(family_toml(FAMILY | {"operators": {"add": {"term": term}}}))
        with pytest.raises(InvalidOption, match="operator add, field term: "):
            read_family(path)


# ---------------------------------------------------------------- lines


def lines(done: Done) -> list[dict[str, Any]]:
    """The printed lines; every line is one of the schema."""
    found = [json.loads(line) for line in done.stdout.splitlines()]
    check = validator("log")
    for line in found:
        assert [error.message for error in check.iter_errors(line)] == []
        assert next(iter(line)) == "event"
    return found


def test_a_run_is_lines_of_the_schema_and_nothing_else(tmp_path: Path) -> None:
    relus(tmp_path / "model.onnx", 20)
    options = ("--budget", "20", "--kernels", "off", "--explain", "--json")
    done = run_apart("optimize", tmp_path / "model.onnx", "-o", tmp_path / "out.onnx", *options)
    found = lines(done)
    kinds = [line["event"] for line in found]
    assert kinds[0] == "start"
    assert kinds[-1] == "result"
    assert {"stage", "progress", "candidate"} <= set(kinds)
    stages = [line["stage"] for line in found if line["event"] == "stage"]
    assert stages[0] == "load the original"
    assert stages[-1] == "write"
    assert [line["seconds"] for line in found if line["event"] == "stage"] == sorted(
        line["seconds"] for line in found if line["event"] == "stage"
    )
    tried = [line for line in found if line["event"] == "candidate"]
    assert any(line["time"] is not None and line["time"]["runs"] > 0 for line in tried)
    result = found[-1]
    assert [line["message"] for line in found if line["event"] == "warning"] == result["notes"]
    assert bool(result["changes"]) is result["changed"]
    assert len(found) < 400


def test_the_schema_refuses_other_lines() -> None:
    check = validator("log")
    line = {"event": "error", "model": "m.onnx", "message": "no", "exit_code": 3}
    assert check.is_valid(line)
    for wrong in ({**line, "event": "failure"}, {**line, "exit_code": "3"}, {"event": "stage", "model": "m"}, [line]):
        assert not check.is_valid(wrong)


def test_an_error_is_a_line_too(tmp_path: Path) -> None:
    (tmp_path / "m.onnx").write_text("no model")
    done = run_apart("optimize", tmp_path / "m.onnx", "--json", check=3)
    start, error = lines(done)
    assert start["event"] == "start"
    assert error["event"] == "error"
    assert error["exit_code"] == 3
    assert one_line(done) == f"taso-mirage: {error['message']}"


def test_a_folder_is_lines_of_its_models_and_its_report(tmp_path: Path) -> None:
    source = tmp_path / "models"
    relus(source / "a.onnx", 2)
    (source / "b.onnx").write_text("no model")
    done = run("optimize", source, "-o", tmp_path / "out", "--no-measure", "--json", check=3)
    found = lines(done)
    assert found[0]["models"] == 2
    assert result_of(done)["model"] == str(source / "a.onnx")
    assert {line["model"] for line in found if line["event"] == "stage"} == {str(source / "a.onnx")}
    (error,) = (line for line in found if line["event"] == "error")
    assert error["model"] == str(source / "b.onnx")
    assert found[-1]["event"] == "folder"
    assert found[-1]["exit_code"] == 3
    written = json.loads((tmp_path / "out" / "index.json").read_text())
    assert validator("folder").is_valid(written)
    assert {key: found[-1][key] for key in written} == written


def test_a_result_is_the_last_line_of_a_model_also_where_a_rewrite_failed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = api._run
    failure = CheckFailed("the check failed: the rewrite 'x' is left out")
    monkeypatch.setattr(api, "_run", lambda *given: replace(real(*given), failure=failure))
    source = tmp_path / "models"
    relus(source / "a.onnx", 2)
    for model, last in ((source / "a.onnx", ["error", "result"]), (source, ["error", "result", "folder"])):
        done = run("optimize", model, "-o", tmp_path / f"{model.name}.out", "--no-measure", "--json", check=5)
        found = lines(done)
        assert [line["event"] for line in found if line["event"] in ("error", "result", "folder")] == last
        assert [line["event"] for line in found][-len(last) :] == last
        (error,) = (line for line in found if line["event"] == "error")
        assert (error["message"], error["exit_code"]) == (str(failure), 5)
        assert result_of(done)["failure"] == str(failure)


@pytest.mark.parametrize("given_up", [False, True])
def test_an_interrupted_folder_ends_with_its_line(
    given_up: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = api.optimize

    def optimize(model: Path, **options: Any) -> Any:
        if given_up:
            raise CtrlC
        options["stop"]()
        return real(model, **options)

    source = tmp_path / "models"
    for name in "ab":
        relus(source / f"{name}.onnx", 2)
    monkeypatch.setattr(api, "optimize", optimize)
    done = run("optimize", source, "-o", tmp_path / "out", "--no-measure", "--json", check=130)
    *_, error, last = lines(done)
    assert (error["event"], error["exit_code"]) == ("error", 130)
    assert done.stderr.splitlines()[-1] == f"taso-mirage: {error['message']}"
    assert (last["event"], last["exit_code"]) == ("folder", 130)
    assert [row["state"] for row in last["models"]] == ["waiting" if given_up else "interrupted", "waiting"]


@pytest.mark.sampled(3)
def test_no_limit_of_time_is_null_in_json(tmp_path: Path) -> None:
    source = tmp_path / "models"
    relus(source / "a.onnx", 2)
    options = ("--budget", "inf", "--kernels", "off", "--json")
    done = run("optimize", source, "-o", tmp_path / "out", *options)
    found = lines(done)
    assert "Infinity" not in done.stdout
    assert found[0]["budget"] is None
    assert found[-1]["budget"] is None
    text = (tmp_path / "out" / "index.json").read_text()
    assert validator("folder").is_valid(json.loads(text))
    assert "Infinity" not in text
    assert "1 to do, without a time limit" in done.stderr
