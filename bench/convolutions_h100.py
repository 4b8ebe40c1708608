"""Convolutions in single precision on a GPU, with a bias and a swish behind them.

    python bench/convolutions_h100.py [ROW ...]

The generated kernels, tuned, against eager PyTorch and torch.compile: once where operands keep all
digits, once where they may be rounded to TF32 (`torch.backends.cudnn.allow_tf32`). Of each also how
far results are from float64, ours and eager's: the norm of the difference over the norm. CUDA
graphs on all sides, two sets of inputs or more in turn, medians. Prints a line for each row and
writes bench/results/convolutions_h100-DEVICE.json (microseconds).
"""

from __future__ import annotations

import argparse
import json
import math
import os
import sys
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "bench")]

from taso_mirage import __version__  # noqa: E402
from taso_mirage.devices.cuda.device import H100  # noqa: E402
from taso_mirage.emit import compile_jobs, triton, tune  # noqa: E402
from taso_mirage.emit.gpu.program import TF32_ROUNDED, TritonProgram  # noqa: E402
from taso_mirage.forms.base.form import GPU_GOALS  # noqa: E402
from taso_mirage.forms.base.fused_convolution import FusedConvolution  # noqa: E402
from taso_mirage.forms.depthwise import DepthwiseConvolution  # noqa: E402
from taso_mirage.forms.shifted import ShiftedConvolution, natural_weights  # noqa: E402
from taso_mirage.ir.terms import Graph, Tensor, variable  # noqa: E402
from taso_mirage.lowering.exact import Float64Oracle  # noqa: E402
from taso_mirage.operators.ops import term  # noqa: E402

NEAR = {False: 1e-5, True: 2e-3}
"""Distances from float64 that are accepted, without and with rounding to TF32."""


@dataclass(frozen=True)
class Convolved:
    """An image (n,c,h,w), a kernel, its columns; `extra` makes a transposed one, `depthwise` one
    of each channel alone."""

    image: tuple[int, ...]
    kernel: tuple[int, ...]
    columns: int
    stride: int = 1
    pad: int = 0
    extra: tuple[int, ...] = ()
    depthwise: bool = False

    def term(self) -> tuple[FusedConvolution, Graph]:
        count = len(self.kernel)
        how: dict[str, Any] = {
            "strides": (self.stride,) * count,
            "pads": (self.pad,) * 2 * count,
            "dilations": (1,) * count,
            **({} if self.depthwise else {"extra": self.extra}),
        }
        x = variable("x", Tensor("float32", self.image))
        parts = (2, self.kernel[-1], self.columns, *self.kernel[:-1], self.image[1])
        w = variable("w", Tensor("float32", (self.columns, 1, *self.kernel) if self.depthwise else parts))
        b = variable("b", Tensor("float32", (1, self.columns, *(1,) * count)))
        kind = DepthwiseConvolution if self.depthwise else ShiftedConvolution
        y = variable("y", Tensor("float32", (1, *kind.alone(x, w, how).shape[1:])))
        added = term("add", y, b)
        body = Graph((y, b), (term("mul", added, term("sigmoid", added)),))
        node = term("depthwise_conv" if self.depthwise else "shifted_conv", x, w, b, body=body, **how)
        goal = Graph((x, w, b), (node,))
        made = GPU_GOALS.read(goal)
        assert isinstance(made, FusedConvolution)
        return made, goal

    def eager(self) -> Callable[..., Any]:
        import torch

        count, transposed = len(self.kernel), bool(self.extra)
        groups = self.image[1] if self.depthwise else 1
        how = (
            (self.stride,) * count,
            (self.pad,) * count,
            (1,) * count,
            transposed,
            self.extra or (0,) * count,
            groups,
        )

        def call(x: Any, w: Any, b: Any) -> Any:
            return torch.nn.functional.silu(torch.convolution(x, w, b, *how))

        return call

    def natural(self, inputs: Sequence[Any]) -> list[Any]:
        """The inputs as PyTorch takes them."""
        x, w, b = inputs
        if self.depthwise:
            return [x, w, b.reshape(-1)]
        whole = w.sum(0).permute(natural_weights(len(self.kernel), bool(self.extra)))
        return [x, whole.contiguous(), b.reshape(-1)]


ROWS = {
    "16x64x256x256, 3x3, 64": Convolved((16, 64, 256, 256), (3, 3), 64),
    "128x8x128x128, 3x3, 64": Convolved((128, 8, 128, 128), (3, 3), 64),
    "64x64x128x128, 3x3, 128": Convolved((64, 64, 128, 128), (3, 3), 128),
    "8x32x512x512, 5x9, 64": Convolved((8, 32, 512, 512), (5, 9), 64),
    "64x256x56x56, 3x3, 256": Convolved((64, 256, 56, 56), (3, 3), 256, pad=1),
    "128x3x224x224, 11x11 by 4, 96": Convolved((128, 3, 224, 224), (11, 11), 96, stride=4, pad=2),
    "16x3x64x64x64, 3x3x3, 64": Convolved((16, 3, 64, 64, 64), (3, 3, 3), 64),
    "64x8x32x64x64, 3x3x3, 32": Convolved((64, 8, 32, 64, 64), (3, 3, 3), 32),
    "4x32x32x128x128, 3x3x3, 64": Convolved((4, 32, 32, 128, 128), (3, 3, 3), 64, pad=1),
    "16x64x256x256, transposed 3x3, 64": Convolved((16, 64, 256, 256), (3, 3), 64, pad=1, extra=(0, 0)),
    "32x64x128x128, transposed 3x3 by 2, 64": Convolved((32, 64, 128, 128), (3, 3), 64, 2, 1, (1, 1)),
    "16x64x32x32x32, transposed 3x3x3, 128": Convolved((16, 64, 32, 32, 32), (3, 3, 3), 128, extra=(0, 0, 0)),
    "64x3x32x32x32, transposed 3x3x3 by 2, 16": Convolved((64, 3, 32, 32, 32), (3, 3, 3), 16, 2, 1, (0, 0, 0)),
    "16x64x512x512, depthwise 3x3": Convolved((16, 64, 512, 512), (3, 3), 64, depthwise=True),
    "32x128x128x256, depthwise 3x7": Convolved((32, 128, 128, 256), (3, 7), 128, depthwise=True),
    "64x96x112x112, depthwise 3x3 by 2": Convolved((64, 96, 112, 112), (3, 3), 96, 2, 1, depthwise=True),
    "64x96x56x56, depthwise 7x7": Convolved((64, 96, 56, 56), (7, 7), 96, pad=3, depthwise=True),
    "64x384x14x14, depthwise 5x5": Convolved((64, 384, 14, 14), (5, 5), 384, pad=2, depthwise=True),
    "64x960x7x7, depthwise 3x3": Convolved((64, 960, 7, 7), (3, 3), 960, pad=1, depthwise=True),
    "32x256x4000, depthwise 31": Convolved((32, 256, 4000), (31,), 256, pad=15, depthwise=True),
}


def programs_of(made: FusedConvolution, goal: Graph, rounds: bool) -> list[TritonProgram]:
    every = [p for each in made.mugraphs(goal, H100) for p in triton.program_forms(each.graph, rounds)]
    found = list({p.source: p for p in every}.values())
    if not rounds or not found[0].launches[0].precisions:
        return found
    return [tune.scheduled(p, 0, replace(p.launches[0].schedule, precision=TF32_ROUNDED)) for p in found]


def measured(case: str, rounds: bool, compiler: Any) -> dict[str, Any]:
    import torch

    torch.backends.cudnn.allow_tf32 = rounds
    row, errors = ROWS[case], list[float]()
    made, goal = row.term()
    call, right = row.eager(), Float64Oracle(goal, rounds)
    exact: dict[int, Any] = {}

    def check(inputs: Sequence[Any], results: Sequence[Any]) -> bool:
        place = inputs[0].data_ptr()
        if place not in exact:
            x, w, b = row.natural([each.double() for each in inputs])
            exact[place] = call(x, w, b)
        errors.append(_apart(results[0], exact[place]))
        return math.isfinite(errors[-1]) and errors[-1] < NEAR[rounds]

    best = tune.tuned_program(programs_of(made, goal, rounds), compiler=compiler, check=check, prepare=right.prepare)
    sets = tune.input_sets(best.program)
    for inputs in sets:
        right.prepare(inputs)
    given = [row.natural(inputs) for inputs in sets]
    theirs = _apart(call(*given[0]), exact_of(row, given[0]))
    torch._dynamo.reset()
    peers = {"eager": call, "torch.compile": torch.compile(call, dynamic=False)}
    times = {name: tune.measured(each, given) * 1e6 for name, each in peers.items()}
    own, refused = [e for e in errors if e < NEAR[rounds]], sum(not e < NEAR[rounds] for e in errors)
    return {
        "case": case,
        "rounds": rounds,
        "ours": best.seconds * 1e6,
        "baselines": times,
        "error": [min(own), max(own)],
        "error of eager": theirs,
        "refused": refused,
        "launches": [{"grid": x.grid, "loop": x.loop} | asdict(x.schedule) for x in best.program.launches],
    }


def exact_of(row: Convolved, given: Sequence[Any]) -> Any:
    return row.eager()(*[each.double() for each in given])


def _apart(found: Any, exact: Any) -> float:
    return float((found.double() - exact).norm() / exact.norm())


def shown(row: dict[str, Any]) -> str:
    times = ", ".join(f"{name} {us:.1f}" for name, us in row["baselines"].items())
    ratio = min(row["baselines"].values()) / row["ours"]
    errors = f"{row['error'][1]:.1e}, eager {row['error of eager']:.1e}"
    launch = row["launches"][0]
    how = f"{launch['grid']} loop {launch['loop']} w{launch['warps']} s{launch['stages']} {launch['precision']}"
    return f"{row['case']:44} {row['ours']:8.1f} us, {ratio:.2f} | {times} | errors {errors} | {how}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("rows", nargs="*", help="parts of the names of rows")
    parser.add_argument("--tf32", choices=("both", "off", "on"), default="both", help="whether operands may be rounded")
    parser.add_argument("--append", action="store_true", help="keep the other rows of the result that is there")
    parser.add_argument("--workers", type=int, default=max((os.cpu_count() or 2) - 2, 1))
    parser.add_argument("-o", "--output", type=Path)
    options = parser.parse_args()
    device = tune.gpu_and_versions()
    short = device.removeprefix("NVIDIA ").split()[0]
    path = options.output or ROOT / "bench" / "results" / f"convolutions_h100-{short}.json"
    rows: list[dict[str, Any]] = json.loads(path.read_text())["rows"] if options.append else []
    regimes = {"both": (False, True), "off": (False,), "on": (True,)}[options.tf32]
    chosen = [case for case in ROWS if not options.rows or any(part in case for part in options.rows)]
    with closing(compile_jobs.compilers(options.workers)) as compiler:
        for case in chosen:
            for rounds in (False,) if ROWS[case].depthwise else regimes:  # such kernels never round
                rows = [row for row in rows if (row["case"], row["rounds"]) != (case, rounds)]
                try:
                    rows.append(measured(case, rounds, compiler))
                except Exception as error:  # the other rows are wanted all the same
                    print(f"{case}: {type(error).__name__}: {str(error)[:300]}", flush=True)
                    continue
                print(shown(rows[-1]), flush=True)
                found = {"bench": "convolutions_h100", "device": device, "unit": "us", "rows": rows}
                path.write_text(json.dumps(found | {"versions": {"taso-mirage": __version__}}, indent=1) + "\n")


if __name__ == "__main__":
    main()
    sys.stdout.flush()
    os._exit(0)  # as quantized_h100.py
