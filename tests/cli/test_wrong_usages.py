"""Wrong usages: `wrong_usages.txt` has the command or call of each, with its message.

    python -m tests.cli.test_wrong_usages

writes the messages anew.
"""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import numpy
import onnx
import pytest
from onnx import parser

KEPT = Path(__file__).with_name("wrong_usages.txt")
COMMAND, CALL = "$ taso-mirage ", ">>> "
HEAD = '<ir_version: 8, opset_import: ["" : 17]>'
MODELS = {
    "good": "agraph (float[batch, 8] x) => (float[batch, 8] y) { y = Relu (x) }",
    "nothing": "agraph (float[2] x) => () { }",
}


def usages() -> Iterator[str]:
    """The commands and calls of the file."""
    for line in KEPT.read_text().splitlines():
        if line.startswith((COMMAND, CALL)):
            yield line


def fill(folder: Path) -> None:
    """Write the files that the usages name."""
    for name, text in MODELS.items():
        onnx.save(parser.parse_model(f"{HEAD} {text}"), folder / f"{name}.onnx")
    (folder / "text.onnx").write_text("this is text")
    (folder / "model.pt").write_bytes(b"PK\x03\x04" + bytes(64))
    (folder / "empty_folder").mkdir()
    (folder / "folder").mkdir()
    (folder / "folder" / "good.onnx").write_bytes((folder / "good.onnx").read_bytes())
    numpy.savez(folder / "other.npz", foo=numpy.ones(3))


def message(usage: str) -> str:
    """The message of a command, after its exit code; or of a call, after the class of its error."""
    from commandline import run

    import taso_mirage

    if usage.startswith(COMMAND):
        done = run(*shlex.split(usage.removeprefix(COMMAND)), check=None)
        assert done.returncode, usage
        said = [line for line in done.stderr.splitlines() if line.strip() and not line.startswith(("Usage:", "Try "))]
        return f"{done.returncode} {' '.join(said)}"
    names = {"optimize": taso_mirage.optimize, "session": taso_mirage.session, "numpy": numpy, "onnx": onnx}
    with pytest.raises(taso_mirage.errors.TasoMirageError) as raised:
        eval(usage.removeprefix(CALL), names)
    return f"{type(raised.value).__name__}: {raised.value}"


def written(folder: Path) -> str:
    """The text of the file with the present messages."""
    fill(folder)
    before, found = os.getcwd(), []
    os.chdir(folder)
    try:
        for line in KEPT.read_text().splitlines():
            if line.startswith((COMMAND, CALL)):
                found += [line, message(line), ""]
            elif line.startswith("#"):
                found.append(line)
            elif not line and found[-1].startswith("#"):
                found.append("")
    finally:
        os.chdir(before)
    return "\n".join(found)


def test_every_message_is_as_kept(tmp_path: Path) -> None:
    assert written(tmp_path) == KEPT.read_text()
    assert not list(tmp_path.glob("*.optimized*"))


def test_there_are_many_of_both_kinds() -> None:
    found = list(usages())
    assert sum(line.startswith(COMMAND) for line in found) >= 30
    assert sum(line.startswith(CALL) for line in found) >= 20
    assert len(set(found)) == len(found)


def test_no_message_of_python_speaks_the_command_line_and_the_other_way_round() -> None:
    """No message has an option in the form of the other caller: `--name` or `name=`."""
    lines = KEPT.read_text().splitlines()
    for usage, said in pairwise(lines):
        if usage.startswith(CALL):
            assert " --" not in f" {said}", said
        if usage.startswith(COMMAND):
            assert "=" not in said.replace("==", ""), said


if __name__ == "__main__":
    import tempfile

    sys.path.append(str(Path(__file__).parents[1] / "harness"))
    with tempfile.TemporaryDirectory() as made:
        text = written(Path(made))
    KEPT.write_text(text)
