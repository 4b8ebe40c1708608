"""The judge of the public table has certificates verified, and finds those that are refused."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator
from contextlib import closing
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

import onnx
import onnx.parser
import pytest
from scripts import script

MODEL = """<ir_version: 9, opset_import: ["": 17]>
g (float[N,4] x) => (float[N,3] y)
<float[4,3] w = {0.5, -1.0, 2.0, 1.5, 0.25, -0.75, 1.0, 1.0, -2.0, 0.1, 0.2, 0.3}, float[3] b = {0.1, -0.2, 0.3}>
{ n = Neg(x) m = Neg(n) p = MatMul(m, w) y = Add(p, b) }"""
Certificate = dict[str, Any]


def without_records(certificate: Certificate) -> None:
    certificate["records"] = []


def of_another_term(certificate: Certificate) -> None:
    """The first equality, minus minus x and x, at the place of the bias."""
    certificate["records"][0][2]["x0"] = certificate["records"][-1][2]["x2"]


def with_a_false_equality(certificate: Certificate) -> None:
    equality = certificate["equalities"][0]
    for each in (equality, equality["case"]):
        each["rhs"] = each["lhs"].replace("def lhs", "def rhs").replace("v1 = neg(v0)", "v1 = relu(v0)")


PLANTED: dict[str, tuple[str, Callable[[Certificate], None]]] = {
    "nothing": ("right", lambda certificate: None),
    "a lost proof": ("right", lambda certificate: certificate["equalities"][0].pop("case")),  # it is found again
    "no records": ("unverified", without_records),
    "another term": ("unverified", of_another_term),
    "a false equality": ("unverified", with_a_false_equality),
    "another format": ("unverified", lambda certificate: certificate.update(format="other")),
    "no equalities": ("unverified", lambda certificate: certificate.pop("equalities")),
}


@cache
def public() -> ModuleType:
    return script("public")


class Copied:
    """A tool whose result is that of a folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def optimize(self, source: Path, target: Path) -> None:
        for each in self.folder.iterdir():
            shutil.copy(each, target.parent / each.name)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with our result and its certificate, under the names that the judge gives."""
    place, folder = tmp_path_factory.mktemp("source"), tmp_path_factory.mktemp("made")
    onnx.save(onnx.parser.parse_model(MODEL), place / "source.onnx")
    script("public_tools").of_ours(
        str(place / "source.onnx"), str(folder / "result.onnx"), effort="quick", measure=False
    )
    return folder


@pytest.fixture(scope="module")
def verifier() -> Iterator[Any]:
    with closing(public().ToolProcess(public().VERIFY, 600.0)) as process:
        yield process


def verdict(folder: Path, place: Path, verifier: Any) -> Any:
    judged = public().Judged.of(onnx.parser.parse_model(MODEL))
    return public().verdict(Copied(folder), judged, place, verifier)


@pytest.mark.parametrize("name", PLANTED)
def test_a_refused_certificate_is_found(name: str, made: Path, verifier: Any, tmp_path: Path) -> None:
    kind, plant = PLANTED[name]
    folder, place = tmp_path / "made", tmp_path / "place"
    shutil.copytree(made, folder)
    place.mkdir()
    file = public().certificate_of(folder / "result.onnx")
    certificate = json.loads(file.read_text())
    plant(certificate)
    file.write_text(json.dumps(certificate))
    found = verdict(folder, place, verifier)
    assert (found.kind, found.certified) == (kind, True), found.why
    file.unlink()
    assert verdict(folder, place, verifier) == public().Verdict("right")  # and that of the model before is gone


def test_a_wrong_result_is_wrong_whatever_its_certificate_says(made: Path, verifier: Any, tmp_path: Path) -> None:
    folder, place = tmp_path / "made", tmp_path / "place"
    shutil.copytree(made, folder)
    place.mkdir()
    result = onnx.load(folder / "result.onnx")
    result.graph.node[-1].attribute.append(onnx.helper.make_attribute("alpha", 2.0))
    del result.graph.node[-1].attribute[:-1]
    onnx.save(result, folder / "result.onnx")
    found = verdict(folder, place, verifier)
    assert (found.kind, found.certified) == ("wrong", True)


def test_certificates_are_a_column_where_there_are_any(tmp_path: Path) -> None:
    lines, judge, table = (script(f"public_{each}") for each in ("lines", "judge", "table"))
    head = {"versions": {"ours": "1"}}
    file = lines.Lines(tmp_path / "one.jsonl", head)
    refused = judge.Verdict("right").with_certificate(lambda: judge.Verdict("refused", "record 2"))
    assert (refused.kind, refused.why) == ("unverified", "refused: record 2")
    file.add("a:1", "ours", judge.Verdict("right").with_certificate(lambda: None), 1.0)
    file.add("a:2", "ours", refused, 1.0)
    file.add("a:1", "other", judge.Verdict("right"), 1.0)
    file.add("b:1", "other", judge.Verdict("right"), 1.0)

    def rows(of: list[Any]) -> list[str]:
        there = {**head, "corpora": lines.counted(of, ["ours", "other"])}
        found: list[str] = table.public(there)
        return [line for line in found if line.startswith("|")]

    found = lines.read(tmp_path / "one.jsonl")[1]
    assert rows(found)[0].split(" | ")[-2] == "unverified"
    assert [row.split("|")[2:-1] for row in rows(found)[2:4]] == [
        [" ours ", *map(" {} ".format, (1, 0, 0, 0, 0, 0, 0, 1, 0))],
        [" other ", *map(" {} ".format, (1, 0, 0, 0, 0, 0, 0, "", 0))],
    ]
    assert "unverified" not in rows([line for line in found if line["tool"] == "other"])[0]
