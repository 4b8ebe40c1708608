"""How long a search takes: each model twice, with an empty cache of costs and with the one just filled (no kernels).

    python bench/search_time.py [NAME ...] [--budget 240] [--models DIR]

Prints a table and writes bench/results/search_time-cpu2.json after each row (seconds; rows of models that are not named stay). A model
is read from DIR/NAME.onnx where that exists, else built in its full size (extra `models`). A search ends by itself or after its budget.
"""

from __future__ import annotations

import argparse
import gc
import json
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import onnx
import onnx_ir as ir

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT))

import models  # noqa: E402
from taso_mirage import __version__  # noqa: E402
from taso_mirage.onnx_io import from_ir  # noqa: E402
from taso_mirage.optimize import session as runtime  # noqa: E402
from taso_mirage.optimize.pipeline import Config, optimize  # noqa: E402

NAMES = ("light_squeezenet", "light_vgg19", "bert", "resnet50", "vit", "llama_decode", "inception_v3")


def row(name: str, budget: float, folder: Path | None) -> dict[str, Any]:
    """The search and the whole job, cold and warm."""
    file = None if folder is None else folder / f"{name}.onnx"
    proto = onnx.load(file) if file is not None and file.exists() else models.build(name, small=False)
    model = from_ir(ir.from_proto(proto))
    found: dict[str, Any] = {"case": name, "budget": budget}
    with tempfile.TemporaryDirectory() as cache:
        for kind in ("cold", "warm"):
            start = time.perf_counter()
            result = optimize(model, Config(budget=budget, seconds=1.0, cache=Path(cache) / "costs.sqlite"))
            searched, statistics = result.seconds["search"], result.statistics
            found[kind] = {
                "search": round(searched, 2),
                "whole": round(time.perf_counter() - start, 2),
                "mutants": round(result.mutations.seconds, 2),
                "states": statistics.states,
                "matches": statistics.matches,
                "ended": statistics.ended,
            }
    return found


def show(r: dict[str, Any]) -> None:
    cold, warm = r["cold"], r["warm"]
    print(
        f"{r['case']:20} search {cold['search']:7.1f} s cold, {warm['search']:6.1f} warm; "
        f"whole {cold['whole']:7.1f} and {warm['whole']:6.1f}; {cold['states']} states; {warm['ended']}",
        flush=True,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", default=NAMES)
    parser.add_argument("--budget", type=float, default=240.0, help="seconds of a search, at most")
    parser.add_argument("--models", type=Path, help="a folder of NAME.onnx")
    parser.add_argument("-o", "--output", type=Path)
    options = parser.parse_args()
    path = options.output or ROOT / "bench" / "results" / f"search_time-cpu{runtime.cores()}.json"
    versions = {"taso-mirage": __version__, "onnxruntime": runtime.version()}
    head = {"bench": "search_time", "device": runtime.device(), "versions": versions, "unit": "s"}
    earlier = json.loads(path.read_text()) if path.exists() else {}
    rows = earlier["rows"] if all(earlier.get(k) == v for k, v in head.items()) else []
    for name in options.names:
        made = row(name, options.budget, options.models)
        show(made)
        rows = [r for r in rows if r["case"] != name] + [made]
        path.write_text(json.dumps({**head, "rows": rows}, indent=1) + "\n")
        gc.collect()


if __name__ == "__main__":
    main()
