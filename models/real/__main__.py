"""`python -m models.real FOLDER [NAME ...]`: fetch or build the corpus, one line for each model."""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path

from models.real import KNOWN
from models.real.build import put
from models.real.fetch import Unavailable
from models.real.known import Known


def main(arguments: list[str] | None = None) -> int:
    """Run the command line; the result is the exit status, 1 if a model is not there at the end."""
    options = _parser().parse_args(arguments)
    unknown = sorted(set(options.names) - set(KNOWN))
    if unknown:
        print(f"error: no model is named {', '.join(unknown)}; --list prints the names", file=sys.stderr)
        return 2
    chosen = [KNOWN[name] for name in options.names] or [k for k in KNOWN.values() if k.small or not options.small]
    if options.list:
        print("\n".join(_described(each) for each in chosen))
        return 0
    if options.folder is None:
        print("error: name a folder for the models", file=sys.stderr)
        return 2
    return max([_one(each, options.folder) for each in chosen], default=0)


def _described(known: Known) -> str:
    size = "small" if known.small else "large"
    return f"{known.name:24} {size}  opset {known.opset}  {known.origin}  {known.note}".rstrip()


def _one(known: Known, folder: Path) -> int:
    start = time.perf_counter()
    try:
        path, kept = put(known, folder)
    except Unavailable as error:
        print(f"{known.name}: {error}", file=sys.stderr, flush=True)
        return 1
    except Exception as error:  # an exporter fails in its own ways; the other models are worth having
        print(f"{known.name}: the export failed: {_cause(error)}", file=sys.stderr, flush=True)
        return 1
    took = "there" if kept else f"{time.perf_counter() - start:.0f} s"
    print(f"{known.name}: {path} ({path.stat().st_size / 1e6:.1f} MB, {took})", flush=True)
    return 0


def _cause(error: BaseException) -> str:
    """The first line of the error that the others come from."""
    while error.__cause__ is not None:
        error = error.__cause__
    said = str(error).strip().splitlines() or [""]
    return f"{type(error).__name__}: {said[0][:200]}"


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m models.real", description=__doc__)
    parser.add_argument("folder", nargs="?", type=Path, metavar="FOLDER", help="where the models go")
    parser.add_argument("names", nargs="*", metavar="NAME", help="these models only; see --list")
    parser.add_argument("--small", action="store_true", help="only those that take seconds")
    parser.add_argument("--list", action="store_true", help="print the models instead")
    return parser


if __name__ == "__main__":
    sys.exit(main())
