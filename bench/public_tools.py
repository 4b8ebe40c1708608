"""The tools of `public.py`, each in a process of its own that optimizes one file after the other.

    python bench/public_tools.py TOOL

reads pairs of paths, separated by a tab, from its standard input. It writes the result of the first
path to the second one, and then a line with nothing, or with the error. `OUTPUTS` are tools that
run a model and write none: OpenVINO runs in the process of the package's own sessions, Inductor in
one as the others (`public_torch.py`).
"""

from __future__ import annotations

import contextlib
import os
import select
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import IO, Any

import onnx

ROOT = Path(__file__).parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "bench")]

import public_torch  # noqa: E402
from peers import KIND, TOOLS  # noqa: E402
from public_judge import CRASHED, LATE, REFUSED, Judged, Verdict  # noqa: E402

from taso_mirage.errors import RuntimeCrashed, TasoMirageError  # noqa: E402
from taso_mirage.measure import native  # noqa: E402
from taso_mirage.measure.child import child  # noqa: E402
from taso_mirage.measure.session import Session  # noqa: E402
from taso_mirage.targets.openvino.target import OPENVINO  # noqa: E402

OURS, OURS_DEFAULT, INDUCTOR = "ours", "ours default", "inductor"
VERIFY = "verify"
"""The process that verifies certificates; no tool."""
BUDGET = 10.0
"""Seconds of our effort "default", without measurements, so that slower rewrites stay, too."""
STARTING = 60.0
"""Seconds that the first file of a process may take longer, which imports the tool."""
LEVELS = {
    "onnxruntime basic": "ORT_ENABLE_BASIC",
    "onnxruntime extended": "ORT_ENABLE_EXTENDED",
    "onnxruntime all": "ORT_ENABLE_ALL",
}
"""The levels of ONNX Runtime. The result of the highest one is for the machine that wrote it."""


def of_runtime(level: str, source: str, target: str) -> None:
    """ONNX Runtime's own optimizations, as a file."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = getattr(onnxruntime.GraphOptimizationLevel, level)
    options.optimized_model_filepath = target
    options.log_severity_level = 4
    onnxruntime.InferenceSession(source, options, providers=["CPUExecutionProvider"])


def certificate_of(target: Path | str) -> Path:
    """The file of the certificate of a result."""
    return Path(f"{target}.json")


def of_ours(source: str, target: str, **options: Any) -> None:
    import taso_mirage

    taso_mirage.optimize(source, output=target, certificate=certificate_of(target), **options)


def verified(source: str, target: str) -> None:
    """`taso-mirage verify` of a result. Raises its errors."""
    from taso_mirage.cli.verify import verify

    verify(Path(source), Path(target), certificate_of(target))


def of_peer(tool: str, source: str, target: str) -> None:
    onnx.save(TOOLS[tool](source, KIND), target)


WRITERS: Mapping[str, Callable[[str, str], None]] = {
    OURS: partial(of_ours, effort="quick"),
    OURS_DEFAULT: partial(of_ours, measure=False, kernels="off", budget=BUDGET),
    **{name: partial(of_runtime, level) for name, level in LEVELS.items()},
    **{name: partial(of_peer, name) for name in TOOLS},
}
OUTPUTS = ("openvino", INDUCTOR)


def openvino(judged: Judged, limit: float) -> Verdict:
    """The finding about OpenVINO's outputs of a model."""
    began = time.monotonic()
    with child().within(limit=limit):
        try:
            session = Session(judged.proto.SerializeToString(), OPENVINO)
            found = [session.run(case.inputs) for case in judged.cases]
        except TasoMirageError as error:
            late = LATE if time.monotonic() - began >= limit else REFUSED
            return Verdict(CRASHED if isinstance(error, RuntimeCrashed) else late, native.first_line(error)[:200])
    return judged.verdict_on(found)


def serve(write: Callable[[str, str], None]) -> None:
    """Answer each pair of paths of the standard input by this function."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # tools print
    for line in sys.stdin:
        source, target = line.rstrip("\n").split("\t")
        try:
            write(source, target)
            said = ""
        except Exception as error:  # a tool that fails has no result, whatever it failed by
            said = f"{type(error).__name__}: {str(error).strip()}".splitlines()[0][:200]
        print(said, file=answers, flush=True)


def main() -> None:
    serve({**WRITERS, INDUCTOR: public_torch.answer, VERIFY: verified}[sys.argv[1]])


class ToolProcess:
    """A process of a tool, which is started again after it died or took more than `limit` seconds
    for a file."""

    def __init__(self, tool: str, limit: float, script: str = __file__) -> None:
        self.tool, self.limit, self.script = tool, limit, script
        self.process: subprocess.Popen[str] | None = None

    def optimize(self, source: Path, target: Path) -> Verdict | None:
        """Write the result of a file; a verdict if there is none."""
        began = self.process is None
        process = self.process or subprocess.Popen(
            [sys.executable, self.script, self.tool],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        self.process = process
        given, told = _pipes(process)
        with contextlib.suppress(BrokenPipeError):
            print(f"{source}\t{target}", file=given, flush=True)
        if not select.select([told], [], [], self.limit + STARTING * began)[0]:
            self.close()
            return Verdict(LATE, f"more than {self.limit:.0f} s")
        said = told.readline()
        if not said.endswith("\n"):
            code = process.wait()
            self.close()
            return Verdict(CRASHED, f"exit code {code}")
        return Verdict(REFUSED, said.strip()) if said.strip() else None

    def close(self) -> None:
        if self.process is not None:
            self.process.kill()
            self.process.wait()
            for each in _pipes(self.process):
                with contextlib.suppress(BrokenPipeError):
                    each.close()
        self.process = None


def _pipes(process: subprocess.Popen[str]) -> tuple[IO[str], IO[str]]:
    assert process.stdin is not None
    assert process.stdout is not None
    return process.stdin, process.stdout


if __name__ == "__main__":
    main()
