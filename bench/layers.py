"""The cost of a model of many equal layers: `python bench/layers.py -o
bench/results/layers-cpu2.json`.

A decoder and a vision transformer, each with 6 and with 24 layers, are optimized from an empty
cache; `--only encoder --layers 2 24` for an encoder. Of each: the gain, wall seconds and loads of
whole models by stage, seconds of processors by this process and its children, wall seconds, loads,
bytes that go to the process of the runtime, and the most memory of both processes. The command line
does the work, so its start is in it. `--before` names a folder with the package at another commit,
whose numbers come first.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT)]

LAYERS = (6, 24)
BUDGET = 30.0
SHORT = 0.05
"""Seconds of a stage that are not said."""
WIDTH = {"hidden_size": 768, "num_attention_heads": 12}
DECODER = {**WIDTH, "num_key_value_heads": 4, "intermediate_size": 2048, "vocab_size": 2000}
ENCODER = {"hidden_size": 512, "num_attention_heads": 8, "intermediate_size": 2048, "vocab_size": 2000}
IMAGES = {**WIDTH, "intermediate_size": 3072, "image_size": 96, "patch_size": 16}
COUNTED = """
import json, resource, sys, time
from pathlib import Path
from taso_mirage.cli.commands import main
from taso_mirage.measure import child
began, spent, call = time.monotonic(), {"loads": 0, "sent": 0}, child.Child.call
size, found = int(sys.argv[1]), sys.argv[2]
resident = 0

def bytes_of(value):
    if isinstance(value, dict):
        return sum(map(bytes_of, value.values()))
    return getattr(value, "nbytes", None) or len(value) if hasattr(value, "__len__") else 0

def file_of(source):
    plain = getattr(source, "model", source)
    return Path(plain).parent if isinstance(plain, str) else None

def counted(self, function, *args):
    global resident
    sent = sum(bytes_of(getattr(each, "model", each)) for each in args)
    spent["sent"] += sent
    if function.__name__ == "open_session":
        numbers = any(isinstance(each, dict) and each for each in args)
        spent["loads"] += numbers or sent > size / 2 or file_of(args[0]) is not None
    answer = call(self, function, *args)
    if self._process is not None:
        lines = Path(f"/proc/{self._process.pid}/status").read_text().splitlines()
        resident = max(resident, *(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM")))
    return answer

child.Child.call = counted
try:
    sys.argv[1:] = sys.argv[3:]
    main()
except SystemExit as end:
    spent["code"] = end.code
own = resource.getrusage(resource.RUSAGE_SELF)
for each in child._CHILD.values():
    each.stop()
others = resource.getrusage(resource.RUSAGE_CHILDREN)
spent["wall"] = round(time.monotonic() - began, 1)
spent["own"] = round(own.ru_utime + own.ru_stime, 1)
spent["children"] = round(others.ru_utime + others.ru_stime, 1)
spent["resident"], spent["runtime"] = own.ru_maxrss * 1024, resident
Path(found).write_text(json.dumps(spent))
"""


def made(folder: Path, name: str, layers: int) -> Path:
    """The file of a model."""
    import onnx

    from models.transformer import bert, llama, vit

    path = folder / f"{name}{layers}.onnx"
    if path.exists():
        return path
    sizes: dict[str, Any] = {"num_hidden_layers": layers}
    if name == "decoder":
        model = llama(sequence=64, configuration={**DECODER, **sizes})
    elif name == "encoder":
        model = bert(configuration={**ENCODER, **sizes})
    else:
        model = vit(configuration={**IMAGES, **sizes})
    onnx.save(model, str(path))
    return path


def measured(model: Path, package: Path, budget: float, more: list[str]) -> dict[str, Any]:
    """A row of one command."""
    with tempfile.TemporaryDirectory() as folder:
        found = Path(folder) / "found.json"
        given = [
            "optimize",
            str(model),
            "-o",
            str(Path(folder) / "out.onnx"),
            "--budget",
            f"{budget:g}",
            "--json",
            *more,
        ]
        command = [sys.executable, "-c", COUNTED, str(model.stat().st_size), str(found), *given]
        cache = {"TASO_MIRAGE_CACHE": str(Path(folder) / "cache"), "PYTHONPATH": str(package)}
        done = subprocess.run(command, env=os.environ | cache, capture_output=True, text=True, check=False, cwd=folder)
        spent: dict[str, Any] = json.loads(found.read_text())
    events = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    ends = [each for each in events if each.get("event") == "result"]
    return {"model": model.stem, "bytes": model.stat().st_size, **spent, **(_of_result(ends[-1]) if ends else {})}


def _of_result(result: dict[str, Any]) -> dict[str, Any]:
    """The gain, and the wall seconds and the loads of each stage; short ones are left out."""
    stages = result["spending"]["stages"]
    return {
        "gain": round(result["time"]["ratio"], 3) if result["time"] else 1.0,
        "stages": {each["stage"]: round(each["seconds"], 1) for each in stages if each["seconds"] >= SHORT},
        "stage_loads": {each["stage"]: each["loads"] for each in stages if each["loads"]},
        "notes": result["notes"],
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", type=Path, help="a folder for the models, which are made where they are missing")
    parser.add_argument("--only", nargs="*", default=["decoder", "images"], choices=["decoder", "images", "encoder"])
    parser.add_argument("--layers", nargs="*", type=int, default=LAYERS)
    parser.add_argument("--budget", type=float, default=BUDGET)
    parser.add_argument("--before", type=Path, help="a folder with the package at another commit")
    parser.add_argument("-o", "--output", type=Path)
    options, more = parser.parse_known_args()
    rows: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as own:
        folder = options.models or Path(own)
        folder.mkdir(parents=True, exist_ok=True)
        for name in options.only:
            for layers in options.layers:
                model = made(folder, name, layers)
                for package in filter(None, (options.before, ROOT)):
                    of = "before" if package == options.before else "now"
                    rows.append({"of": of, "layers": layers, **measured(model, package, options.budget, more)})
                    print(rows[-1], flush=True)
    if options.output is not None:
        options.output.write_text(json.dumps({"bench": "layers", "rows": rows}, indent=2) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
