"""`python -m models.graphnet CLONE FOLDER [NAME ...]`: export samples, one line for each file, and
count the reasons of those that have none."""

from __future__ import annotations

import argparse
import sys
import time
from collections import Counter
from pathlib import Path

from models.graphnet import samples, spread
from models.graphnet.export import put
from models.real.torch_export import EXPORTERS


def file_of(folder: Path, name: str, which: str) -> Path:
    """The file of a sample's export."""
    return folder / f"{name.replace('/', '__')}.{which}.onnx"


def main(arguments: list[str] | None = None) -> int:
    options = _parser().parse_args(arguments)
    options.folder.mkdir(parents=True, exist_ok=True)
    within = spread(options.clone, options.parameters)
    print(f"{len(within)} of {len(samples(options.clone))} samples have at most {options.parameters:.0f} parameters")
    counts = Counter[tuple[str, str, str]]()
    for name in options.names or within[: options.count]:
        for which in options.exporter:
            start, path = time.perf_counter(), file_of(options.folder, name, which)
            why = put(options.clone / "samples" / name, path, which, options.seconds)
            counts[name.partition("/")[0], which, "exported" if why is None else why] += 1
            print(f"{name} {which}: {why or path} ({time.perf_counter() - start:.1f} s)", flush=True)
    for (kind, which, why), count in sorted(counts.items()):
        print(f"{kind:24} {which:12} {count:5} {why}")
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m models.graphnet", description=__doc__)
    parser.add_argument("clone", type=Path, help="a clone of github.com/PaddlePaddle/GraphNet")
    parser.add_argument("folder", type=Path, help="where the models go; existing files stay")
    parser.add_argument("names", nargs="*", metavar="NAME", help="these samples only, such as torchvision/resnet18")
    parser.add_argument("--count", type=int, default=100, help="the number of samples, of all kinds and sizes")
    parser.add_argument("--parameters", type=float, default=30e6, help="the most that a sample may have")
    parser.add_argument("--exporter", nargs="+", choices=[*EXPORTERS], default=[*EXPORTERS])
    parser.add_argument("--seconds", type=float, default=180.0, help="the limit of an export")
    return parser


if __name__ == "__main__":
    sys.exit(main())
