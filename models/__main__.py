"""`python -m models NAME`: build one model and write it to a file."""

import argparse
import sys
from pathlib import Path
from typing import Any

import onnx

from models import NAMES, build

EXTERNAL_DATA_BYTES = 1_500_000_000


def main(arguments: list[str] | None = None) -> int:
    """Run the command line; the result is the exit status."""
    options = _parser().parse_args(arguments)
    if options.list:
        print("\n".join(NAMES))
        return 0
    chosen: dict[str, Any] = {"dynamic": True} if options.dynamic else {}
    chosen |= {"checkpoint": options.checkpoint} if options.checkpoint else {}
    try:
        model = build(options.name, small=not options.full, seed=options.seed, **chosen)
    except (ImportError, TypeError, ValueError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    path = options.output or Path(f"{options.name}.onnx")
    size = write(model, path)
    print(f"{path}: {len(model.graph.node)} nodes, {size / 1e6:.1f} MB")
    return 0


def write(model: onnx.ModelProto, path: Path) -> int:
    """Write the model, its weights in a second file where one file would be too large; the result
    is its bytes."""
    size = weight_bytes(model)
    if size <= EXTERNAL_DATA_BYTES:
        return path.write_bytes(model.SerializeToString(deterministic=True))
    onnx.save(model, path, save_as_external_data=True, location=f"{path.name}.data")
    return size


def weight_bytes(model: onnx.ModelProto) -> int:
    """Bytes of the initializers: protobuf itself cannot tell the size of a message above 2 GB."""
    return sum(len(tensor.raw_data) for tensor in model.graph.initializer)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m models", description=__doc__)
    wanted = parser.add_mutually_exclusive_group(required=True)
    wanted.add_argument("name", nargs="?", choices=NAMES, metavar="NAME", help="the model to build; see --list")
    wanted.add_argument("--list", action="store_true", help="print the names of all models")
    parser.add_argument("--full", action="store_true", help="the real size instead of a small one")
    parser.add_argument(
        "--dynamic", action="store_true", help="dynamic batch (bert, llama, vit) and sequence (bert, llama)"
    )
    parser.add_argument(
        "--checkpoint",
        choices=["bfloat16", "float16"],
        help="round matrices to the numbers of a checkpoint in this dtype",
    )
    parser.add_argument("--seed", type=int, default=0, help="the seed of the random weights (default 0)")
    parser.add_argument("-o", "--output", type=Path, help="the file to write (default NAME.onnx)")
    return parser


if __name__ == "__main__":
    sys.exit(main())
