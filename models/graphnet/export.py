"""Export one sample in a process of its own.

python -m models.graphnet.export SAMPLE FILE [--exporter torchscript]
"""

from __future__ import annotations

import argparse
import resource
import subprocess
import sys
from pathlib import Path

import onnx

from models.graphnet import load
from models.real.torch_export import EXPORTERS, exported

MEMORY = 12 << 30
"""The address space of an export, in bytes."""


def put(sample: Path, path: Path, which: str, seconds: float) -> str | None:
    """Write a sample's model in a process of its own; why there is none, if so. An existing file
    stays."""
    if path.exists():
        return None
    part = path.with_suffix(".part")
    command = [sys.executable, "-m", "models.graphnet.export", str(sample), str(part), "--exporter", which]
    try:
        done = subprocess.run(
            command, cwd=Path(__file__).parent.parent, capture_output=True, text=True, errors="replace", timeout=seconds
        )
    except subprocess.TimeoutExpired:
        return f"late: more than {seconds:.0f} s"
    if done.returncode == 0:
        part.replace(path)
        return None
    said = (done.stderr.strip().splitlines() or [""])[-1][:200]
    return said if done.returncode == 1 else f"crashed: exit code {done.returncode} {said}".strip()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("sample", type=Path)
    parser.add_argument("file", type=Path)
    parser.add_argument("--exporter", choices=[*EXPORTERS], default="dynamo")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    stage = "load"
    try:
        subject = load(options.sample, options.seed).subject()
        stage = options.exporter
        onnx.save(exported(subject, options.exporter), options.file)
    except Exception as error:  # code of others, and an exporter, fail in their own ways
        while error.__cause__ is not None and isinstance(error.__cause__, Exception):
            error = error.__cause__
        said = (str(error).strip().splitlines() or [""])[0]
        print(f"{stage}: {type(error).__name__}: {said}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
