"""Seconds of the tests by file, of one run of `tests/run`:

    tests/run --junit-xml=report.xml
    python bench/durations.py report.xml -o bench/results/durations-cpu2.json

The seconds of a test contain those of its fixtures; the time in which tests are collected is in the
seconds of the run alone. A sampled case counts on its day only.
"""

from __future__ import annotations

import argparse
import ast
import json
import sys
from collections import defaultdict
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

ROOT = Path(__file__).resolve().parents[1]
FOLDERS = {
    "benchmarks": "The scripts in `bench/` and the builders in `models/` run and write their rows.",
    "certificates": "Certificates lead from one model to the other, and changed ones are refused.",
    "checker": "The checker refuses programs with changed steps and accepts true ones.",
    "cli": "Commands, options, exit codes and messages, also with hostile files and interrupts.",
    "emit": "Generated C++ and Triton compute their goals, also in the interpreter of Triton.",
    "end_to_end": "Whole models through the public interface; random models and planted errors.",
    "forms": "Hand-written kernels compute their goals, and wrong variants are seen.",
    "generate": "Rules are enumerated, proved, generalized and minimized, and files are reproducible.",
    "ir": "Terms, dimensions and muGraphs check their types and print losslessly.",
    "mugraph": "Searches for kernels find what is known, and verification refuses mutants.",
    "meanings": "The meanings of operators agree with each other.",
    "measure": "Comparisons with float64, timing, and processes of the runtime that fail or lie.",
    "onnx_io": "Models of all opsets are read and written without a change of their results.",
    "operators": "Definitions of operators agree with ONNX Runtime, and laws hold on random typings.",
    "pipeline": "Stages of `optimize`, and kernels inside models.",
    "prove": "True equations are proved, and false ones are refuted.",
    "pytorch": "`torch.compile` and `optimize` give the results of eager PyTorch.",
    "regions": "Regions of models that become kernels, for fixed and for free sizes.",
    "report": "Reports and pages say what was done.",
    "repository": "The pages run, the wheel installs, and plug-ins work.",
    "rewriting": "Rules match and rewrite as they are written.",
    "runtime": "The library of custom operators and the plug-in of TensorRT launch kernels as planned.",
    "search": "Searches find known results and never raise costs.",
    "system": "Files, locks, caches and signals: what is written is whole, and nothing is left behind.",
    "targets": "The targets CPU, CUDA and OpenVINO.",
}
"""The question that the tests of a folder answer."""
SHOWN = 25
"""The number of files in the second table."""


def recorded(report: Path) -> dict[str, Any]:
    """The tests and seconds of every file of a report in JUnit's format, and the seconds of the
    run."""
    (suite,) = ElementTree.parse(report).getroot().iter("testsuite")
    files: dict[str, list[float]] = defaultdict(lambda: [0, 0.0])
    for case in suite.iter("testcase"):
        file = case.attrib["classname"].replace(".", "/") + ".py"
        files[file][0] += 1
        files[file][1] += float(case.attrib["time"])
    return {
        "bench": "durations",
        "run": round(float(suite.attrib["time"])),
        "files": {
            name: {"tests": int(tests), "seconds": round(seconds, 1), "checks": checks(ROOT / name)}
            for name, (tests, seconds) in sorted(files.items())
        },
    }


def checks(file: Path) -> str:
    """The first sentence of a test file's docstring."""
    text = " ".join((ast.get_docstring(ast.parse(file.read_text())) or "").split())
    return text.partition(". ")[0].rstrip(".")


def durations(found: Mapping[str, Any]) -> list[str]:
    """Two tables: the seconds of all folders, and the files that take most."""
    folders: dict[str, list[float]] = defaultdict(lambda: [0, 0.0])
    for name, each in found["files"].items():
        sums = folders[name.split("/")[1]]
        sums[0] += each["tests"]
        sums[1] += each["seconds"]
    rows = sorted(((name, *sums) for name, sums in folders.items()), key=lambda row: -row[2])
    costly = sorted(found["files"].items(), key=lambda each: -each[1]["seconds"])[:SHOWN]
    tests, seconds = (sum(row[i] for row in rows) for i in (1, 2))
    return [
        *head("folder of `tests/`", "seconds of one core", "tests", "what they check"),
        *(f"| `{name}/` | {took:.0f} | {count:,} | {FOLDERS[name]} |" for name, count, took in rows),
        f"| all | {seconds:.0f} | {tests:,} | |",
        "",
        f"The run took {found['run'] // 60}:{found['run'] % 60:02} minutes on two cores, with the time in which "
        "tests are collected and with lint beside it.",
        "",
        *head("file", "seconds of one core", "tests", "what it checks"),
        *(f"| `{n}` | {e['seconds']:.1f} | {e['tests']} | {e['checks']} |" for n, e in costly),
    ]


def head(*names: str) -> Iterable[str]:
    yield f"| {' | '.join(names)} |"
    yield "|---|---:|---:|---|"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("report", type=Path)
    parser.add_argument("-o", "--output", type=Path)
    options = parser.parse_args()
    found = recorded(options.report)
    print("\n".join(durations(found)))
    if options.output is not None:
        options.output.write_text(json.dumps(found, indent=2) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
