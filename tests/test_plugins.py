"""Packages of others: the template builds, installs and works; what is wrong is refused with what
to do about it."""

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
from taso_mirage.errors import InvalidModel, InvalidOption
from taso_mirage.plugins import CHOSEN, OPERATOR_GROUP, RULE_GROUP, TARGET_GROUP, Plugin
from taso_mirage.prove.rules import recheck
from taso_mirage.search.plugin_rules import plugin_rules
from taso_mirage.targets.known import target
from taso_mirage.targets.stamp import Stamp

ROOT = Path(__file__).parent.parent
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
    return subprocess.run([sys.executable, *args], env=given, capture_output=True, text=True, timeout=300, cwd=site)


def package(site: Path, group: str, module: str, source: str) -> None:
    """An installed distribution `strange 2.0` of one module and one entry point."""
    (site / f"{module}.py").write_text(source)
    info = site / "strange-2.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: strange\nVersion: 2.0\n")
    (info / "entry_points.txt").write_text(f"[{group}]\nodd = {module}\n")


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
    ],
    ids=["wrong law", "broken", "taken"],
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


def test_a_target_is_found_by_the_name_of_its_entry_point(installed: Installed) -> None:
    mine = SimpleNamespace(name="mine", known_options={"speed": ("1", "2")})
    installed(TARGET_GROUP, "mine", mine)
    assert target("mine") is mine
    assert Stamp("mine", (("speed", "2"),)).target == "mine"
    with pytest.raises(InvalidModel, match="'speed' = '3' of mine"):
        Stamp("mine", (("speed", "3"),))
    with pytest.raises(InvalidOption, match="the targets are: cpu, cuda, openvino, mine"):
        target("yours")
    installed(TARGET_GROUP, "yours", mine)
    with pytest.raises(InvalidOption, match="gives no target of that name; its `name` is 'mine'"):
        target("yours")
