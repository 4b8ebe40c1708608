"""Archives and arrays with something wrong, through the commands that read them."""

from __future__ import annotations

import io
import struct
import zipfile
from collections.abc import Mapping
from pathlib import Path
from random import Random

import numpy as np

from fuzz.judge import in_folder, ran
from fuzz.seeds import made, node, value

METHODS = 4 * (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED) + (zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA)
WORDS = (b"'<f4'", b"'|O'", b"False", b"(2, 3)", b"shape", b"descr", b"{", b"}", b"'", b",")
OTHERS = (
    b"",
    b"'",
    b"(" * 400,
    b"-" * 500,
    b"9" * 300,
    b"(4611686018427387904, 4)",
    b"(-1,)",
    b"(1.5,)",
    b"None",
    b"True",
    b"'|O'",
    b"'V0'",
    b"'<U999999999'",
    b"[('a', '<f4')]",
    b"'(9, 9)f4'",
    b"10L",
    b"\\",
    b"\x00",
    b"\xff",
    b"lambda: 0",
)
"""Replacements of a word of a header."""
TEXTS = (b"[" * 100_000, b"", b"{}", b"\xff", b'{"format": 1e999}', b'["a", "b", NaN]', b"9" * 5000, b"[[]]", b"null")
"""Replacements of a file of a cache."""
KERNEL = f"kernels/{'0a' * 16}.json"


def header(text: str, version: int = 1) -> bytes:
    """The header of an array, by its text."""
    length = struct.pack("<H" if version == 1 else "<I", len(text))
    return b"\x93NUMPY" + bytes([version, 0]) + length + text.encode("latin1")


def packed(files: Mapping[str, bytes], method: int = zipfile.ZIP_STORED) -> bytes:
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w", method) as archive:
        for name, content in files.items():
            archive.writestr(name, content)
    return stream.getvalue()


def damaged(seed: int) -> bytes:
    """The archive of arrays of a seed."""
    random = Random(seed)
    array = io.BytesIO()
    np.save(array, np.arange(6, dtype=np.float32).reshape(2, 3))
    content = array.getvalue()
    if random.random() < 0.5:
        content = content.replace(random.choice(WORDS), random.choice(OTHERS))
        content = _fitted(content) if random.random() < 0.7 else content
    if random.random() < 0.3:
        content = _changed(content, random)
    names = random.choice(
        (("x.npy",), ("x.npy", "y.npy"), ("x", "x.npy"), ("../x.npy",), ("x\x1b[2J.npy",), ("x/",), ())
    )
    return _spoilt(packed(dict.fromkeys(names, content), random.choice(METHODS)), random)


def _fitted(content: bytes) -> bytes:
    """An array whose header has the length that it says."""
    end = content.find(b"\n") + 1
    return content[:8] + struct.pack("<H", max(end - 10, 0) & 0xFFFF) + content[10:]


def _spoilt(content: bytes, random: Random) -> bytes:
    kind = random.random()
    if kind < 0.3:
        return content
    if kind < 0.4:
        return content[: random.randrange(len(content) + 1)]
    if kind < 0.6:  # fields of the list of files: versions, flags, methods, sums, sizes
        start = content.rfind(b"PK\x01\x02")
        place = max(start, 0) + random.randrange(4, 46)
        value = random.choice((0, 1, 9, 12, 14, 90, 255))
        return content[:place] + bytes([value]) + content[place + 1 :]
    return _changed(content, random)


def _changed(content: bytes, random: Random) -> bytes:
    other = bytearray(content)
    for _ in range(random.choice((1, 1, 3, 30))):
        if other:
            other[random.randrange(len(other))] = random.randrange(256)
    return bytes(other)


def cache_archive(seed: int) -> bytes:
    """The archive of a cache of a seed."""
    random = Random(seed)
    files = {"manifest.json": b'{"format": 1}', "costs.jsonl": b'["a", "b", 1.0]\n' * 3, KERNEL: b"{}"}
    if random.random() < 0.4:
        files[random.choice([*files])] = random.choice(TEXTS)
    if random.random() < 0.3:
        files[random.choice(("../../planted", "kernels/../../planted", "/planted", "runtime/a.so", "kernels"))] = b"{}"
    if random.random() < 0.3:
        del files[random.choice([*files])]
    return _spoilt(packed(files, random.choice(METHODS)), random)


def archive_case(seed: int, folder: Path) -> tuple[str, list[str]]:
    """A damaged archive: the command that reads it takes it, or states the error in one line."""
    model = made([node("Relu", "x", "y")], [value("x", 2, 3)], [value("y", 2, 3)])
    (folder / "m.onnx").write_bytes(model.SerializeToString())
    command = ["cache", "import", "a.zip"]
    if seed % 3:
        command = ["optimize", "m.onnx", "--inputs", "a.zip", "--no-measure", "--kernels", "off", "--budget", "0"]
    (folder / "a.zip").write_bytes(damaged(seed) if seed % 3 else cache_archive(seed))
    with in_folder(folder, folder / "cache") as seen:
        code, wrong = ran(command)
    if code not in ("done", "option") and not wrong:
        wrong = [f"{code}: for a damaged archive"]
    if list(folder.parent.glob("planted")) or list(folder.rglob("planted")):
        wrong.append("a name led elsewhere")
    return f"archive {command[0]} {code}", wrong + seen
