"""Files of text with something wrong: rules, certificates and checkpoints, through the commands
that read them; and plans of kernels."""

from __future__ import annotations

import base64
import json
import shutil
import zlib
from collections.abc import Callable
from functools import cache
from pathlib import Path
from random import Random
from typing import Any

from fuzz.judge import in_folder, ran
from fuzz.mutate import TEXTS
from fuzz.seeds import contents
from taso_mirage.errors import InvalidModel, Unsupported
from taso_mirage.runtime.register import PLAN_FORMAT
from taso_mirage.runtime.tensorrt.plugin_attributes import kernel

ROOT = Path(__file__).resolve().parents[2]
VALUES = (None, True, 0, -1, 2**63, 1e308, float("nan"), float("inf"), "", [], {}, [[]], {"a": {}}, *TEXTS)
"""Replacements of a value of JSON, or of a word of a text."""
PIECES = (
    "",
    "(" * 3000,
    "[" * 3000,
    "-" * 3000,
    "**",
    "9**9**9",
    "inf",
    "nan",
    "\x00",
    "\x1b[2J",
    '"""',
    "x.__class__",
    "lambda: x",
    "import os",
    "1e999",
    "n" * 3000,
    "== x",
    "\n",
    "=",
    "[[rule]]",
    "None",
    "where",
    "*x",
    "-1",
    "float32[n]",
)
"""Replacements of a word of a text."""


def text_case(seed: int, folder: Path) -> tuple[str, list[str]]:
    """A damaged text of a seed: the command that reads it must say so in one line, or read it as it
    is."""
    return KINDS[seed % len(KINDS)](Random(seed), folder)


def words(text: str, random: Random) -> str:
    """A text with words changed, repeated, moved or left out."""
    parts = list(filter(None, _split(text)))
    for _ in range(random.choice((1, 1, 2, 5))):
        at = random.randrange(len(parts))
        match random.randrange(5):
            case 0:
                parts[at] = random.choice(PIECES)
            case 1:
                parts[at] = random.choice(parts)
            case 2:
                del parts[at:]
                parts.append("")
            case 3:
                parts[at] = parts[at] * random.choice((2, 300))
            case _:
                parts[at] = random.choice(TEXTS)
    return "".join(parts)


def _split(text: str) -> list[str]:
    found, word = [], ""
    for c in text:
        if word and c.isalnum() != word[-1].isalnum():
            found.append(word)
            word = ""
        word += c
    return [*found, word]


def changed(value: Any, random: Random) -> Any:
    """A value of JSON with another one somewhere inside."""
    if isinstance(value, dict) and value and random.random() < 0.9:
        key = random.choice(list(value))
        if random.random() < 0.1:
            return {k: v for k, v in value.items() if k != key}
        return value | {key: changed(value[key], random)}
    if isinstance(value, list) and value and random.random() < 0.9:
        at = random.randrange(len(value))
        return [*value[:at], changed(value[at], random), *value[at + 1 :]]
    if isinstance(value, str) and value and random.random() < 0.6:
        return words(value, random)
    return random.choice(VALUES)


# ---------------------------------------------------------------- the kinds


@cache
def _rules() -> tuple[str, ...]:
    shipped = sorted((ROOT / "substitutions").glob("*.toml"))
    return tuple(
        "[[rule]]" + each
        for file in shipped
        if file.name != "rejected.toml"
        for each in file.read_text().split("[[rule]]")[1:]
    )


def _rule_file(random: Random, folder: Path) -> tuple[str, list[str]]:
    """One or two rules; a name is a path at times."""
    text = "\n".join(random.sample(_rules(), random.choice((1, 1, 2))))
    (folder / "library").mkdir()
    (folder / "library" / "rules.toml").write_bytes(words(text, random).encode(errors="surrogatepass"))
    command = random.choice((["list"], ["list"], ["show", ""], ["explain", ""]))
    with in_folder(folder, folder.parent / "cache") as seen:
        code, wrong = ran(["substitutions", *command, "--library", "library"])
    return f"rules {command[0]} {code}", answered(code, wrong) + seen


@cache
def _certified(folder: Path) -> Path:
    """A model, its optimized form, the certificate, and a checkpoint of its kernels."""
    made = folder / "certified"
    made.mkdir(exist_ok=True)
    (made / "m.onnx").write_bytes(contents()[1])
    with in_folder(made, folder / "cache"):
        options = ["--no-measure", "--kernels", "off", "--budget", "2", "--certificate", "c.json"]
        ran(["optimize", "m.onnx", *options, "-o", "out.onnx"])
        ran(["kernels", "m.onnx", "--budget", "5", "--checkpoint", "k.json"])
    return made


def _json_file(random: Random, folder: Path) -> tuple[str, list[str]]:
    """A certificate, or a checkpoint, with another value somewhere."""
    for each in _certified(folder.parent).glob("*.*"):
        shutil.copyfile(each, folder / each.name)
    command, name = random.choice(
        (
            (["verify", "m.onnx", "out.onnx", "c.json"], "c.json"),
            (["kernels", "m.onnx", "--budget", "0", "--checkpoint", "k.json"], "k.json"),
        )
    )
    value = json.loads((folder / name).read_text())
    for _ in range(random.choice((1, 1, 3))):
        value = changed(value, random)
    (folder / name).write_text(json.dumps(value))
    with in_folder(folder, folder.parent / "cache") as seen:
        code, wrong = ran(command)
    return f"{name} {code}", answered(code, wrong) + seen


def _plan(random: Random, folder: Path) -> tuple[str, list[str]]:
    """The plan of a kernel, its checksum right or not."""
    code = b"code"
    row = f"image 0 80 ptx go 1 0 0 0 {len(code)} {zlib.crc32(code):08x}"
    lines = [
        f"taso_mirage {PLAN_FORMAT} cuda",
        "input float32 n 4",
        "output float32 n 4*n",
        row,
        "kernel n 1 1 i0 o0",
        "",
    ]
    above = words("\n".join(lines), random)
    text = f"{above}check {zlib.crc32(above.encode(errors='replace')):08x}\n"
    try:
        kernel("node", {"plan": text, "image_0": base64.b64encode(code).decode()}, [(3, 4)])
    except (InvalidModel, Unsupported) as error:
        return "plan refused", [] if len(str(error)) < 400 else [f"a long error: {len(str(error))}"]
    except Exception as error:
        return "plan error", [f"{type(error).__name__}: {error} for {text[:300]!r}"]
    return "plan taken", []


def answered(code: str, wrong: list[str]) -> list[str]:
    """A text that is none may be an error of syntax (1), and a certificate may fail (5)."""
    answers = [each for each in wrong if not each.startswith(("error: ", "check: "))]
    return answers + [each for each in wrong if "internal error" in each and each not in answers]


KINDS: tuple[Callable[[Random, Path], tuple[str, list[str]]], ...] = (_rule_file, _json_file, _plan)
