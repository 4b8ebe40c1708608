"""How well two sessions on one model are told to be equal: with the pause before every turn that
the optimizer makes, and without.

    python bench/clocks.py [NAME ...] [--models DIR] [--seconds 6]

Prints and writes bench/results/clocks-cpuN.json: lower quartiles in microseconds and the quartiles
of the ratio of both sessions round by round, which would all be 1 on a machine without noise. ONNX
Runtime's threads spin for a while after a run. `child` compares runs in the process of its own,
where the optimizer takes its times, with runs in this one: the cost of the way there.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
from numpy.typing import NDArray

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT))

import models  # noqa: E402
from taso_mirage import __version__  # noqa: E402
from taso_mirage.devices.machine import cores  # noqa: E402
from taso_mirage.ir.model import Model, random_inputs  # noqa: E402
from taso_mirage.measure import native  # noqa: E402
from taso_mirage.measure import session as runtime  # noqa: E402
from taso_mirage.measure.target import CPU  # noqa: E402
from taso_mirage.onnx_io import from_ir, serialize  # noqa: E402
from taso_mirage.targets.protocol import Arrays  # noqa: E402


def row(name: str, options: argparse.Namespace) -> dict[str, Any]:
    """A model against itself, first without pauses."""
    file = None if options.models is None else options.models / f"{name}.onnx"
    proto = onnx.load(file) if file is not None and file.exists() else models.build(name, small=False)
    model = from_ir(ir.from_proto(proto))
    inputs, sessions = random_inputs(model, 0), [runtime.open_in_child(model, CPU, source=True) for _ in range(2)]
    found: dict[str, Any] = {"case": name}
    for kind, pause in (("without", 0.0), ("with", native.SPINNING)):
        native.SPINNING = pause
        first, second = (np.asarray(t) for t in runtime.interleaved(sessions, inputs, options.seconds))
        found[kind] = compared(first, second)
    return found | {"child": beside(model, inputs, options.seconds)}


def beside(model: Model, inputs: Arrays, seconds: float) -> dict[str, Any]:
    """Times of runs in the optimizer's child process and in this one, turn by turn."""
    here = CPU.open(serialize(model, source=True), False, {})
    both = [runtime.open_in_child(model, CPU, source=True), here]
    first, second = (np.asarray(t) for t in runtime.interleaved(both, inputs, seconds))
    return compared(first, second)


def compared(first: NDArray[np.float64], second: NDArray[np.float64]) -> dict[str, Any]:
    """Lower quartiles of both, and the quartiles of their ratio round by round."""
    return {
        "us": [round(float(np.percentile(t, 25)) * 1e6, 1) for t in (first, second)],
        "ratio_quartiles": np.percentile(first / second, (25, 50, 75)).round(3).tolist(),
        "rounds": len(first),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", default=["light_squeezenet", "resnet18"])
    parser.add_argument("--models", type=Path, help="a folder of NAME.onnx")
    parser.add_argument("--seconds", type=float, default=6.0, help="each comparison")
    options = parser.parse_args()
    rows = []
    for name in options.names:
        rows.append(row(name, options))
        print(rows[-1], flush=True)
    versions = {"taso-mirage": __version__, "onnxruntime": runtime.child_version(), "numpy": np.__version__}
    result = {
        "bench": "clocks",
        "device": runtime.device(CPU),
        "pause": native.SPINNING,
        "versions": versions,
        "rows": rows,
    }
    path = ROOT / "bench" / "results" / f"clocks-cpu{cores()}.json"
    path.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
