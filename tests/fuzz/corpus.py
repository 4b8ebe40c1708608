"""Files that once made a command fail: `kept/` has them, and each is run through the commands that
read its kind. New ones go there."""

from __future__ import annotations

import shutil
from pathlib import Path

from fuzz.judge import SECRET, in_folder, ran
from fuzz.seeds import contents
from fuzz.texts import answered

KEPT = sorted((Path(__file__).parent / "kept").iterdir())
QUICK = ["--no-measure", "--kernels", "off", "--budget", "0", "--run-limit", "3"]
COMMANDS = {
    ".rules.toml": (["substitutions", "list", "--library", "."], ["substitutions", "explain", "", "--library", "."]),
    ".checkpoint.json": (["kernels", "m.onnx", "--budget", "0", "--checkpoint", "{}"],),
    ".certificate.json": (["verify", "m.onnx", "m.onnx", "{}"],),
    ".onnx": (["optimize", "{}", *QUICK, "-o", "out.onnx"], ["inspect", "{}"], ["kernels", "{}", "--budget", "0"]),
}


def kept_case(number: int, folder: Path) -> tuple[str, list[str]]:
    """The file of a number, in a folder of its own: the outcomes of its commands."""
    kept, here = KEPT[number], folder / "here"
    here.mkdir()
    (folder / "secret.bin").write_bytes(SECRET * 10)
    (here / "m.onnx").write_bytes(contents()[1])
    shutil.copyfile(kept, here / kept.name)
    codes, wrong = [], list[str]()
    kind = next(each for each in COMMANDS if kept.name.endswith(each))
    with in_folder(here, folder.parent / "cache") as seen:
        for command in COMMANDS[kind]:
            code, said = ran([kept.name if word == "{}" else word for word in command])
            codes.append(code)
            wrong += answered(code, said) if kind != ".onnx" else said
    if (here / "planted").exists() or any(SECRET in each.read_bytes() for each in here.glob("out.onnx*")):
        wrong.append("code of the file ran, or the output has what another file holds")
    if list(folder.parent.glob("*outside*")) or list(folder.glob("*outside*")):
        wrong.append("a name led elsewhere")
    return f"{kept.name} {' '.join(codes)}", wrong + seen
