"""A file that is replaced while a command runs: before one look at a file among all that it takes,
something else is put in the place of the file that it reads or writes."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from random import Random
from typing import Any

import onnx

from fuzz.judge import SECRET, in_folder, ran
from fuzz.seeds import contents

LOOKING = ("open", "stat", "lstat", "fstat", "readlink", "replace", "mkdir", "unlink")
LOOKS = 400
"""The least number of times that a quick command looks at files, by this process itself."""
PLACES = ("in/w.bin", "in/m.onnx", "in", "out.onnx", "out.onnx.data", "cache/costs.sqlite")


def replaced(seed: int, folder: Path) -> tuple[str, list[str]]:
    """A command, during which something becomes a link, a pipe or another file, or goes."""
    random = Random(seed)
    secrets = folder / "secrets"
    for name in ("in", "cache", "secrets"):
        (folder / name).mkdir()
    for name in ("w.bin", "m.onnx", "costs.sqlite", "secret.bin"):
        (secrets / name).write_bytes(SECRET * 1000)
    model = onnx.load_from_string(contents()[seed % len(contents())])
    onnx.save(model, folder / "in/m.onnx", save_as_external_data=True, location="w.bin", size_threshold=0)
    place, kind = folder / random.choice(PLACES), random.choice(("link", "link", "link", "pipe", "gone", "other"))
    at, before = int(LOOKS ** random.random()), _digest(secrets)
    command = random.choice(
        (["optimize", "in/m.onnx", "--no-measure", "--budget", "0", "-o", "out.onnx"], ["inspect", "in/m.onnx"])
    )
    with in_folder(folder, folder / "cache"), watched(at, lambda: _replace(place, kind, secrets)):
        code, wrong = ran(command)
    if code == "output":  # it says that it cannot write there
        wrong = []
    if _digest(secrets) != before:
        wrong.append(f"{place.name} became a {kind}, and what it led to was changed")
    for path in folder.rglob("out.onnx*"):
        if path.is_file() and not path.is_symlink() and SECRET in path.read_bytes():
            wrong.append("the output has what another file holds")
    return f"replaced {command[0]} {code}", wrong


def _replace(place: Path, kind: str, secrets: Path) -> None:
    with suppress(OSError):
        if place.is_dir() and not place.is_symlink():
            place.rename(place.with_name("away"))
        place.unlink(missing_ok=True)
        if kind == "link":
            place.symlink_to(secrets if place.suffix == "" else secrets / place.name)
        elif kind == "pipe":
            os.mkfifo(place)
        elif kind == "other":
            place.write_bytes(b"of somebody else" * 1000)


@contextmanager
def watched(at: int, done: Callable[[], None]) -> Iterator[None]:
    """Do something before the look of this number at a file."""
    kept, count = {name: getattr(os, name) for name in LOOKING}, [0]

    def watching(call: Callable[..., Any]) -> Callable[..., Any]:
        def look(*args: Any, **named: Any) -> Any:
            count[0] += 1
            if count[0] == at:
                done()
            return call(*args, **named)

        return look

    try:
        for name, call in kept.items():
            setattr(os, name, watching(call))
        yield
    finally:
        for name, call in kept.items():
            setattr(os, name, call)


def _digest(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted(folder.iterdir()) if path.is_file()}
