"""Packages of others: the template builds, installs and works; a wrong one is refused with the next
step."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from importlib.metadata import EntryPoint
from pathlib import Path
from types import SimpleNamespace

import pytest

from taso_mirage import plugins
from taso_mirage.devices.stamp import Stamp
from taso_mirage.emit import discovery
from taso_mirage.emit.cpu.prepared import CpuProgram
from taso_mirage.errors import InvalidModel, InvalidOption
from taso_mirage.forms.base.form import Form
from taso_mirage.plugins import CHOSEN, FORM_GROUP, OPERATOR_GROUP, RULE_GROUP, TARGET_GROUP, Plugin
from taso_mirage.prove.rules import recheck
from taso_mirage.search.plugin_rules import plugin_rules
from taso_mirage.targets.cpu.target import CPU
from taso_mirage.targets.known import target
from taso_mirage.targets.protocol import Target

ROOT = Path(__file__).parents[2]
RULE = """
[[rule]]
name = "mine.sub_to_sub"
operators = 2
given = "x: (m, n), y: (m, n)"
attributes = ""
lhs = "neg(sub(x, y))"
rhs = "{rhs}"
"""


def python(site: Path, *args: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """A process that sees the packages of a folder too."""
    paths = os.pathsep.join((str(site), str(ROOT)))
    given = os.environ | {"PYTHONPATH": paths, "TASO_MIRAGE_CACHE": str(site / "cache")} | environment
    return subprocess.run([sys.executable, *args], env=given, capture_output=True, text=True, timeout=600, cwd=site)


def package(site: Path, group: str, module: str, source: str) -> None:
    """An installed distribution `strange 2.0` of one module and one entry point."""
    (site / f"{module}.py").write_text(source)
    info = site / "strange-2.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: strange\nVersion: 2.0\n")
    (info / "entry_points.txt").write_text(f"[{group}]\nodd = {module}\n")


@pytest.mark.sampled(2)
def test_the_template_builds_installs_and_passes_its_test(tmp_path: Path) -> None:
    made = ("-m", "pip", "install", "-q", "--no-deps", "--no-build-isolation", "--no-index", "--target", str(tmp_path))
    source = tmp_path / "source"
    subprocess.run(["cp", "-r", str(ROOT / "docs/plugin"), str(source)], check=True)
    done = python(tmp_path, *made, str(source))
    assert done.returncode == 0, done.stderr
    done = python(tmp_path, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(source / "tests"))
    assert done.returncode == 0, done.stdout + done.stderr
    done = python(tmp_path, "-m", "taso_mirage.cli", "doctor")
    assert "plug-in example (taso_mirage.operators, taso-mirage-example 0.1.0)" in done.stdout
    done = python(tmp_path, "-m", "taso_mirage.cli", "doctor", **{CHOSEN: ""})
    assert "plug-in" not in done.stdout


@pytest.mark.sampled(4)
@pytest.mark.parametrize(
    ("source", "said"),
    [
        (
            'from op_specs.arithmetic import neg\nneg.laws("neg(sub(x, y)) == sub(x, y)")',
            "has a wrong rule: neg.",
        ),
        ("1 / 0", "cannot be imported: ZeroDivisionError: division by zero"),
        (
            "from taso_mirage.operators.ops import op\n@op()\ndef relu(xp, x):\n    return x",
            "two operators are called relu",
        ),
        ("import sys\nsys.exit(0)", "cannot be imported: SystemExit: 0"),
        (
            "from op_specs.arithmetic import add, sub\nadd.body = sub.body",
            "changes the operator add, which is not its own",
        ),
        (
            "from op_specs.arithmetic import add\nadd.traits.commutes = lambda *a: True\nadd.commutative = False",
            "changes the operator add, which is not its own",
        ),
        (
            "from taso_mirage.operators.ops import REGISTRY\nREGISTRY['add'] = REGISTRY['sub']",
            "changes the operator add, which is not its own",
        ),
        ("from taso_mirage.operators.ops import REGISTRY\ndel REGISTRY['add']", "changes the operator add"),
    ],
    ids=["wrong law", "broken", "taken", "ends the process", "another body", "other traits", "replaced", "removed"],
)
def test_what_is_wrong_is_refused(tmp_path: Path, source: str, said: str) -> None:
    package(tmp_path, OPERATOR_GROUP, "odd", source)
    ask = (
        "-m",
        "taso_mirage.cli",
        "optimize",
        str(ROOT / "models/mini_transformer.onnx"),
        "--no-measure",
        "-o",
        "x.onnx",
    )
    done = python(tmp_path, *ask)
    assert done.returncode == 2, done.stderr
    assert "the plug-in 'odd' of strange 2.0" in done.stderr
    assert said in done.stderr
    assert "uninstall strange" in done.stderr
    assert not (tmp_path / "x.onnx").exists()
    assert python(tmp_path, "-c", "import taso_mirage; taso_mirage.rules()", **{CHOSEN: ""}).returncode == 0


Installed = Callable[[str, str, object], None]


@pytest.fixture
def installed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Installed:
    """Makes one plug-in of a group that gives an object."""
    monkeypatch.setenv("TASO_MIRAGE_CACHE", str(tmp_path / "cache"))

    def install(group: str, name: str, gives: object) -> None:
        monkeypatch.setattr(EntryPoint, "load", lambda point: gives)
        made = Plugin(group, name, "strange 2.0", EntryPoint(name, "odd", group))
        monkeypatch.setattr(plugins, "plugins", lambda asked: (made,) if asked == group else ())
        monkeypatch.setattr("taso_mirage.search.plugin_rules.plugins", plugins.plugins)
        monkeypatch.setattr(discovery, "plugins", plugins.plugins)

    return install


def rule_file(folder: Path, rhs: str) -> object:
    (folder / "mine.toml").write_text(RULE.format(rhs=rhs))
    return SimpleNamespace(__file__=str(folder / "__init__.py"))


def test_rules_in_files_are_judged_once(installed: Installed, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    installed(RULE_GROUP, "odd", rule_file(tmp_path, "sub(y, x)"))
    assert [rule.name for rule in plugin_rules()] == ["mine.sub_to_sub"]

    def unexpected(*_: object) -> object:
        raise AssertionError("judged again")

    monkeypatch.setattr(recheck, "verdict_of", unexpected)
    assert len(plugin_rules()) == 1
    with pytest.raises(InvalidOption, match=r"has a rule mine\.sub_to_sub, as another set"):
        plugin_rules({"mine.sub_to_sub"})


def test_a_wrong_rule_is_refused_each_time_with_its_counterexample(installed: Installed, tmp_path: Path) -> None:
    installed(RULE_GROUP, "odd", rule_file(tmp_path, "sub(x, y)"))
    for _ in range(2):
        with pytest.raises(InvalidOption, match=r"(?s)strange 2\.0 has a wrong rule: mine\.sub_to_sub.*refuted.*lhs"):
            plugin_rules()


def test_a_file_that_cannot_be_read_is_named(installed: Installed, tmp_path: Path) -> None:
    installed(RULE_GROUP, "odd", rule_file(tmp_path, "sub(x"))
    with pytest.raises(InvalidOption, match=r"(?s)strange 2\.0 cannot be read:.*mine\.toml"):
        plugin_rules()


def a_target(name: str, **given: object) -> SimpleNamespace:
    """An object with all that a target has."""
    made = SimpleNamespace(**dict.fromkeys(each for each in dir(Target) if each[0] != "_"))
    vars(made).update(given, name=name)
    return made


def test_a_target_is_found_by_the_name_of_its_entry_point(installed: Installed) -> None:
    mine = a_target("mine", known_options={"speed": ("1", "2")})
    installed(TARGET_GROUP, "mine", mine)
    assert target("mine") is mine
    assert Stamp("mine", (("speed", "2"),)).target == "mine"
    with pytest.raises(InvalidModel, match="'speed' = '3' of mine"):
        Stamp("mine", (("speed", "3"),))
    with pytest.raises(InvalidOption, match="the targets are: cpu, cuda, openvino, mine, auto"):
        target("yours")
    installed(TARGET_GROUP, "yours", mine)
    with pytest.raises(InvalidOption, match="gives no target of that name; its `name` is 'mine'"):
        target("yours")


class _Lying:
    """Says another name at each look."""

    def __init__(self) -> None:
        self.asked = 0

    @property
    def name(self) -> str:
        self.asked += 1
        return "odd" if self.asked == 1 else "cpu"


class _Raising:
    @property
    def name(self) -> str:
        raise ZeroDivisionError


@pytest.mark.parametrize(
    ("gives", "said"),
    [
        (None, "gives no target of that name"),
        (_Lying(), "gives no target of that name"),
        (_Raising(), "gives no target of that name"),
        (SimpleNamespace(name="odd"), "gives no target: it has no 'blocked'"),
    ],
)
def test_what_is_no_target_is_refused(installed: Installed, gives: object, said: str) -> None:
    installed(TARGET_GROUP, "odd", gives)
    with pytest.raises(InvalidOption, match=f"the plug-in 'odd' of strange 2.0 {said}"):
        target("odd")


def test_no_plugin_takes_the_name_of_a_target(installed: Installed, monkeypatch: pytest.MonkeyPatch) -> None:
    installed(TARGET_GROUP, "cpu", a_target("cpu", known_options={"speed": ("1",)}))
    assert target("cpu") is CPU
    with pytest.raises(InvalidModel, match="'speed'"):
        Stamp("cpu", (("speed", "1"),))
    installed(TARGET_GROUP, "odd", a_target("odd"))
    twice = plugins.plugins(TARGET_GROUP) * 2
    monkeypatch.setattr(plugins, "plugins", lambda asked: twice)
    with pytest.raises(InvalidOption, match="has the name of the plug-in 'odd'"):
        target("odd")


@pytest.mark.parametrize("options", [None, ["speed"], {"speed": "12"}, 7])
def test_options_of_a_target_are_a_table(installed: Installed, options: object) -> None:
    installed(TARGET_GROUP, "odd", a_target("odd", known_options=options))
    with pytest.raises(InvalidOption, match="`known_options` that are no table"):
        Stamp("odd", (("speed", "1"),))


def planted_rules(folder: Path, kind: str) -> object:
    """The package of a plug-in whose file of rules is none."""
    match kind:
        case "a pipe":
            os.mkfifo(folder / "mine.toml")
        case "a folder":
            (folder / "mine.toml").mkdir()
        case "a link to nothing":
            (folder / "mine.toml").symlink_to("nowhere")
        case "a link to a device":
            (folder / "mine.toml").symlink_to("/dev/zero")
        case "brackets":
            (folder / "mine.toml").write_text("a = " + "[" * 100_000)
        case "no text":
            (folder / "mine.toml").write_bytes(b"\xff\xfe\x00")
        case "a rule that vouches for itself":
            evidence = (
                "evidence = { cases = 5, typings = 320, proof = 'symbolic', bound = '0', excluded = 1, steps = 1 }"
            )
            (folder / "mine.toml").write_text(RULE.format(rhs="sub(x, y)") + evidence)
    return SimpleNamespace(__file__=None if kind == "no file" else str(folder / "__init__.py"))


@pytest.mark.parametrize(
    "kind",
    [
        *("a pipe", "a folder", "a link to nothing", "a link to a device", "brackets", "no text", "no file"),
        "a rule that vouches for itself",
    ],
)
def test_files_of_rules_that_are_none_are_refused(installed: Installed, tmp_path: Path, kind: str) -> None:
    installed(RULE_GROUP, "odd", planted_rules(tmp_path, kind))
    with pytest.raises(InvalidOption, match=r"the plug-in 'odd' of strange 2\.0"):
        plugin_rules()


class _NoProgram:
    read = members = print

    @property
    def program(self) -> str:
        raise ZeroDivisionError


def a_form(op: str) -> Form:
    return Form(CpuProgram(op, lambda node: pytest.fail("not asked")), lambda goal: None, lambda *_: [])


def test_a_form_is_found_after_those_of_the_package(installed: Installed) -> None:
    ours = discovery.discovered()
    mine = a_form("cumsum")
    installed(FORM_GROUP, "odd", mine)
    assert discovery.discovered.__wrapped__() == (*ours, mine)


@pytest.mark.parametrize(
    ("gives", "said"),
    [
        (None, "names no form"),
        (_NoProgram(), "names no form"),
        (SimpleNamespace(read=print, members=print, program=SimpleNamespace(op=3)), "names no form"),
        (a_form("mine"), "has kernels for 'mine', which is no operator"),
        (a_form("linear"), "has kernels for the operator linear, which another form has"),
    ],
)
def test_what_is_no_form_is_refused(installed: Installed, gives: object, said: str) -> None:
    installed(FORM_GROUP, "odd", gives)
    with pytest.raises(InvalidOption, match=f"the plug-in 'odd' of strange 2.0 {said}"):
        discovery.discovered.__wrapped__()
