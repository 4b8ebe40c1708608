"""The gains of partially equivalent mutants with corrections (PET, OSDI'21, section 8): the paper's
programs, and whole models.

    python bench/partial.py [NAME ...] [--target cpu] [--dtype float32] [--batch 1 16] [--models
    DIR] [--parts | --whole]

Parts: every mutant of a program, with its corrections, is timed beside the program in one run,
whatever the cost model says of it; a result that differs does not count. Whole models:
`optimize_model` without mutants and with them, the same budget and cache for both, then the
original and both results in turn, a second time with the files of the first on disk (warm). Prints
tables and writes bench/results/partial-DEVICE.json (microseconds).
"""

from __future__ import annotations

import argparse
import gc
import json
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT))

import models  # noqa: E402
from taso_mirage import __version__  # noqa: E402
from taso_mirage.devices.machine import cores  # noqa: E402
from taso_mirage.errors import TasoMirageError  # noqa: E402
from taso_mirage.ir.model import Model, StoredWeight, random_array, random_inputs  # noqa: E402
from taso_mirage.ir.terms import Graph, Node, Tensor, variable, weight  # noqa: E402
from taso_mirage.measure import session as runtime  # noqa: E402
from taso_mirage.measure.cost_cache import cache_path  # noqa: E402
from taso_mirage.measure.native import Arrays  # noqa: E402
from taso_mirage.measure.session import Session  # noqa: E402
from taso_mirage.measure.target import Target, target  # noqa: E402
from taso_mirage.onnx_io import from_ir  # noqa: E402
from taso_mirage.onnx_io.build import standalone  # noqa: E402
from taso_mirage.operators.ops import term  # noqa: E402
from taso_mirage.pipeline import optimize_model  # noqa: E402
from taso_mirage.report.result import Result  # noqa: E402
from taso_mirage.search.config import Config  # noqa: E402
from taso_mirage.search.partial.candidates import CorrectedMutant, candidates  # noqa: E402
from taso_mirage.search.partial.whole import verified_program  # noqa: E402
from taso_mirage.search.weights import fold_weights  # noqa: E402
from taso_mirage.verdicts import Failure  # noqa: E402

WHOLE = ("resnet18", "csrnet", "inception_v3", "bert", "resnet3d18")
SLOW = 0.03
"""Seconds of a run from which few rounds are enough."""
LIMIT = 3.0
"""Seconds of a run up to which a model is timed: of a slower one this machine says nothing."""


# ---------------------------------------------------------------- programs


def conv(
    image: Sequence[int], kernel: Sequence[int], dtype: str, stride: int = 1, dilation: int = 1, group: int = 1
) -> Node:
    """A convolution that keeps the image's size at stride one."""
    x, w = variable("x0", Tensor(dtype, tuple(image))), weight("x1", Tensor(dtype, tuple(kernel)))
    pads = tuple(dilation * (k // 2) for k in kernel[2:]) * 2
    axes = len(kernel) - 2
    return term("conv", x, w, strides=(stride,) * axes, pads=pads, dilations=(dilation,) * axes, group=group)


def product(left: Sequence[int], right: Sequence[int], dtype: str, known: bool) -> Node:
    make = weight if known else variable
    return term("matmul", variable("x0", Tensor(dtype, tuple(left))), make("x1", Tensor(dtype, tuple(right))))


def beside(image: Sequence[int], kernels: Sequence[Sequence[int]], dtype: str) -> Node:
    """Convolutions of one image, their results concatenated."""
    made = [conv(image, k, dtype) for k in kernels]
    made = [term("conv", c.args[0], weight(f"x{i + 1}", c.args[1].tensor), **dict(c.attrs)) for i, c in enumerate(made)]
    return term("concat", *made, axis=1)


PROGRAMS: dict[str, Callable[[int, str], Node]] = {
    "CSRNet 3x3 dilated by 2, 14x14x512": lambda n, d: conv((n, 512, 14, 14), (512, 512, 3, 3), d, dilation=2),
    "CSRNet 3x3 dilated by 2, 14x14, 256 to 128": lambda n, d: conv((n, 256, 14, 14), (128, 256, 3, 3), d, dilation=2),
    "Inception 5x5, 35x35, 48 to 64": lambda n, d: conv((n, 48, 35, 35), (64, 48, 5, 5), d),
    "Inception 1x7, 17x17x192": lambda n, d: conv((n, 192, 17, 17), (192, 192, 1, 7), d),
    "Inception 1x3 and 3x1 of one image, 8x8x384": lambda n, d: beside(
        (n, 384, 8, 8), [(384, 384, 1, 3), (384, 384, 3, 1)], d
    ),
    "ResNet-18 3x3, 56x56x64": lambda n, d: conv((n, 64, 56, 56), (64, 64, 3, 3), d),
    "ResNet-18 3x3, stride 2, 56x56, 64 to 128": lambda n, d: conv((n, 64, 56, 56), (128, 64, 3, 3), d, stride=2),
    "ResNet-18 1x1, stride 2, 56x56, 64 to 128": lambda n, d: conv((n, 64, 56, 56), (128, 64, 1, 1), d, stride=2),
    "ResNet-18 3x3, 7x7x512": lambda n, d: conv((n, 512, 7, 7), (512, 512, 3, 3), d),
    "ResNet-18 7x7 stem, stride 2, 224x224": lambda n, d: conv((n, 3, 224, 224), (64, 3, 7, 7), d, stride=2),
    "ResNeXt-50 3x3, 32 groups, 56x56x128": lambda n, d: conv((n, 128, 56, 56), (128, 4, 3, 3), d, group=32),
    "ResNeXt-50 3x3, 32 groups, 28x28x256": lambda n, d: conv((n, 256, 28, 28), (256, 8, 3, 3), d, group=32),
    "ResNeXt-50 3x3, 32 groups, 14x14x512": lambda n, d: conv((n, 512, 14, 14), (512, 16, 3, 3), d, group=32),
    "ResNet3D-18 3x3x3, 8x28x28x128": lambda n, d: conv((n, 128, 8, 28, 28), (128, 128, 3, 3, 3), d),
    "BERT query, 128x768": lambda n, d: product((n, 128, 768), (768, 768), d, True),
    "BERT scores, 12 heads of 64": lambda n, d: product((n, 12, 128, 64), (n, 12, 64, 128), d, False),
}


def program(name: str, batch: int, dtype: str) -> Graph:
    """A program of the paper; leaves are x0, x1, ..."""
    output = PROGRAMS[name](batch, dtype)
    inputs = {n: None for n in Graph((), (output,)) if n.op == "input"}
    return Graph(tuple(inputs), (output,))


def model_of(graph: Graph, arrays: dict[str, StoredWeight]) -> Model:
    """A program as a model, with the terms that depend on weights computed ahead."""
    return fold_weights(standalone(graph, {"": 20}, arrays))[0]


def close(got: np.ndarray, wanted: np.ndarray, dtype: str) -> bool:
    scale = float(np.abs(wanted.astype(np.float64)).max())
    return (
        float(np.abs(got.astype(np.float64) - wanted.astype(np.float64)).max())
        <= (2e-2 if dtype == "float16" else 1e-3) * scale
    )


def rounds(session: Session, inputs: Arrays) -> int:
    """Rounds of timing, at least: fewer of long runs, which vary less."""
    run = session.prepared(inputs)
    run()
    return 15 if run() < SLOW else 5


def part_row(name: str, batch: int, options: argparse.Namespace, where: Target) -> dict[str, Any]:
    """Every mutant of a program beside it: the best that is right as it is, and the best with
    corrections."""
    graph = program(name, batch, options.dtype)
    start = time.perf_counter()
    made = list(candidates(graph))
    usable = [c for c in made if isinstance(c, CorrectedMutant)]
    found_in = time.perf_counter() - start
    rng = np.random.default_rng(0)
    arrays = {n.attr("name"): StoredWeight(random_array(n, rng, {})) for n in graph if n.op == "weight"}
    arrays = {
        k: StoredWeight(a.numpy() / np.asarray(np.sqrt(a.numpy()[0].size), a.numpy().dtype)) for k, a in arrays.items()
    }
    original = model_of(graph, arrays)
    inputs = random_inputs(original, 0)
    session = runtime.open_in_child(original, where)
    wanted, least = session.run(inputs)[0], rounds(session, inputs)
    rows, kept, left_out = list[dict[str, Any]](), list[CorrectedMutant](), list[str]()
    for candidate in usable:
        whole, bare = (
            _opened(model_of(replace(graph, outputs=g.outputs), arrays), where)
            for g in (candidate.corrected, candidate.mutant.graph)
        )
        if whole is None or bare is None or not close(whole.run(inputs)[0], wanted, options.dtype):
            left_out.append("the runtime does not take it" if whole is None or bare is None else "its result differs")
            continue
        # three at a time: the threads of more sessions are in each other's way
        times = runtime.interleaved([session, whole, bare], inputs, options.seconds / len(usable), least)
        rows.append(_mutant(candidate, *times))
        kept.append(candidate)
    times = runtime.interleaved([session], inputs, options.seconds / 4, least)
    found = {"case": f"{name} b{batch}", "us": _us(times[0]), "mutants": len({c.mutant for c in usable}),
             "refused": sum(isinstance(c, Failure) for c in made), "left_out": left_out, "search_seconds": round(found_in, 2)}  # fmt: skip
    for kind, exact in (("exact", True), ("corrected", False)):
        those = [(r, c) for r, c in zip(rows, kept, strict=True) if c.agreement.total == exact]
        best = max(those, key=lambda each: each[0]["ratio"], default=None)
        if best is not None:
            evidence = verified_program(graph, best[1].corrected)
            found[kind] = best[0] | {"verified": not isinstance(evidence, Failure), "of": len(those)}
    return found


def _opened(model: Model, where: Target) -> Session | None:
    try:
        return runtime.open_in_child(model, where)
    except TasoMirageError:
        return None


def _mutant(candidate: CorrectedMutant, program: list[float], own: list[float], bare: list[float]) -> dict[str, Any]:
    ratios = np.asarray(program) / np.asarray(own)
    low, high = np.percentile(ratios, (25, 75))
    right = min(r.share for r in candidate.agreement.regions)
    return {
        "families": list(candidate.mutant.families),
        "right": round(right, 4),
        "us": _us(own),
        "ratio": round(_us(program) / _us(own), 4),
        "quartiles": [round(float(low), 4), round(float(high), 4)],
        "uncorrected_ratio": round(_us(program) / _us(bare), 4),
    }


def _us(times: Sequence[float]) -> float:
    return round(float(np.percentile(times, 25)) * 1e6, 2)


# ---------------------------------------------------------------- whole models


def loaded(name: str, batch: int, options: argparse.Namespace) -> Model:
    """The model in full size, from DIR/NAME-bBATCH.onnx or built; half precision is onnxruntime's
    own conversion."""
    file = None if options.models is None else options.models / f"{name}-b{batch}.onnx"
    proto = onnx.load(file) if file is not None and file.exists() else models.build(name, small=False, batch=batch)
    if options.dtype == "float16":
        from onnxruntime.transformers.float16 import convert_float_to_float16

        proto = convert_float_to_float16(proto, disable_shape_infer=True)
    return from_ir(ir.from_proto(proto))


def whole_row(name: str, batch: int, options: argparse.Namespace, where: Target) -> dict[str, Any]:
    """The original, the result without mutants and the one with them, in turn."""
    model = loaded(name, batch, options)
    inputs = random_inputs(model, 0)
    original = runtime.open_in_child(model, where, source=True)
    run = original.prepared(inputs)
    run()
    if (seconds := run()) > LIMIT:
        return {"case": f"{name} b{batch}", "note": f"a run takes {seconds:.1f} s here: not timed"}
    config = Config(budget=options.budget, target=where, seconds=min(2.0, options.seconds), cache=options.cache)
    without = optimize_model(model, replace(config, partial=False))
    cold, cold_seconds = _timed(model, config)
    result, seconds = _timed(model, config)
    ours = [runtime.open_in_child(r.model, r.target, source=not r.steps) for r in (without, result)]
    times = runtime.interleaved([original, *ours], inputs, options.seconds, rounds(original, inputs))
    ratios = np.asarray(times[1]) / np.asarray(times[2])
    low, high = np.percentile(ratios, (25, 75))
    made, taken = result.mutations, [m for name, m in result.mutations.by_name.items() if name in result.equations]
    return {
        "case": f"{name} b{batch}",
        "original": _us(times[0]),
        "without": _us(times[1]),
        "with": _us(times[2]),
        "ratio": round(_us(times[1]) / _us(times[2]), 4),
        "quartiles": [round(float(low), 4), round(float(high), 4)],
        "programs": made.programs,
        "mutants": made.mutants,
        "refused": made.refused,
        "pay_alone": len(made.found),
        "taken": [
            {"families": list(m.families), "right": m.right, "alone": round(m.seconds[0] / m.seconds[1], 3)}
            for m in taken
        ],
        "late": made.late,
        "mutation_seconds": {"cold": round(cold.mutations.seconds, 2), "warm": round(made.seconds, 2)},
        "seconds": {"cold": round(cold_seconds, 1), "warm": round(seconds, 1)},
        "note": "; ".join(result.notes),
    }


def _timed(model: Model, config: Config) -> tuple[Result, float]:
    start = time.perf_counter()
    return optimize_model(model, config), time.perf_counter() - start


# ---------------------------------------------------------------- the file


def rows(options: argparse.Namespace, where: Target) -> Iterator[tuple[str, dict[str, Any]]]:
    """The kind and the row of every case that was asked for."""
    for batch in options.batch:
        for name in PROGRAMS if not options.whole else ():
            if not options.names or any(n.lower() in name.lower() for n in options.names):
                yield "parts", _row(part_row, name, batch, options, where)
        for name in WHOLE if not options.parts else ():
            if not options.names or name in options.names:
                yield "models", _row(whole_row, name, batch, options, where)
        gc.collect()


def _row(
    make: Callable[..., dict[str, Any]], name: str, batch: int, options: argparse.Namespace, where: Target
) -> dict[str, Any]:
    try:
        return make(name, batch, options, where)
    except Exception as error:  # one case that fails costs no other
        return {"case": f"{name} b{batch}", "note": f"{type(error).__name__}: {str(error)[:200]}"}


def show(kind: str, r: dict[str, Any]) -> None:
    if "ratio" in r:
        print(f"{r['case']:24} original {r['original']:9.0f} us, without {r['without']:9.0f}, with {r['with']:9.0f}: {r['ratio']:.3f} "
              f"({r['mutants']} mutants of {r['programs']} programs, {r['pay_alone']} pay alone, {len(r['taken'])} taken, "
              f"{r['mutation_seconds']['warm']} s warm) {r['note']}", flush=True)  # fmt: skip
    elif kind == "parts" and "us" in r:
        best = [f"{k} {r[k]['ratio']:.3f} ({', '.join(r[k]['families'])})" for k in ("exact", "corrected") if k in r]
        print(
            f"{r['case']:48} {r['us']:9.0f} us, {r['mutants']} mutants: {'; '.join(best)} {'; '.join(r['left_out'])}",
            flush=True,
        )
    else:
        print(f"{r['case']}: {r['note']}", flush=True)


def earlier(path: Path, head: dict[str, Any]) -> dict[str, Any]:
    """The file of an earlier run with the same head, or an empty one."""
    if path.exists():
        found: dict[str, Any] = json.loads(path.read_text())
        if all(found.get(k) == v for k, v in head.items()):
            return found
    return {**head, "parts": [], "models": []}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", help="models, or parts of the programs' names; all if left out")
    parser.add_argument("--target", default="cpu")
    parser.add_argument("--dtype", default="float32", choices=["float32", "float16"])
    parser.add_argument("--batch", type=int, nargs="*", default=[1, 16])
    parser.add_argument("--models", type=Path, help="a folder of NAME-bBATCH.onnx")
    parser.add_argument("--parts", action="store_true", help="the programs alone")
    parser.add_argument("--whole", action="store_true", help="the models alone")
    parser.add_argument("--budget", type=float, default=60.0, help="seconds for each search")
    parser.add_argument("--seconds", type=float, default=6.0, help="seconds for timing each case")
    parser.add_argument("--cache", type=Path, default=cache_path(), help="the file of measured costs")
    parser.add_argument("-o", "--output", type=Path)
    options = parser.parse_args()
    where = target(options.target)
    device = runtime.device(where)
    name = f"cpu{cores()}" if where.on_cores else device.split()[1] if " " in device else device
    path = options.output or ROOT / "bench" / "results" / f"partial-{name}.json"
    versions = {"taso-mirage": __version__, "onnxruntime": runtime.child_version(), "numpy": np.__version__}
    head = {"bench": "partial", "device": device, "dtype": options.dtype, "versions": versions, "unit": "us"}
    found = earlier(path, head)
    for kind, row in rows(options, where):
        found[kind] = [r for r in found[kind] if r["case"] != row["case"]] + [row]
        show(kind, row)
        path.write_text(json.dumps(found, indent=1) + "\n")
    ratios = [r["ratio"] for r in found["models"] if "ratio" in r]
    if ratios:
        print(f"models: geometric mean {np.exp(np.mean(np.log(ratios))):.3f}, least {min(ratios):.3f}")


if __name__ == "__main__":
    main()
