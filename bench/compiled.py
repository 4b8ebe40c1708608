"""Compilers of PyTorch on functions after public reports of wrong results: who equals eager mode.

    python bench/compiled.py [--tools ours inductor] [--limit 120] [--lines FILE] [-o FILE]
    python bench/compiled.py --only "pytorch 99686" --tools ours

Each function (`compiled_reports_*.py`) is called in eager mode and compiled, with the same
arguments and the same seed: first with ordinary numbers, for which it is compiled, and then with
those of the report. A tool runs in a process of its own, which is started again after a crash or
the limit. Compared are the results and the arguments afterwards: number, dtypes, shapes and strides
(the finding "interface"), and values. Integers are equal; floats are within four times the error of
eager mode and 64 roundings of the float64 result of the same function, or, where it has none, of
eager mode. Random numbers are those of eager mode. A right row of ours names the operations that
stay in eager mode.

Each finding is a line of `--lines`, and a second call with the same file goes on. The counts are
written into bench/results/compiled-cpu2.json.
"""

from __future__ import annotations

import argparse
import importlib
import json
import sys
import tempfile
import time
import warnings
from collections.abc import Callable
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
ROOT = HERE.parent
sys.path[:0] = [str(ROOT), str(HERE)]

import torch  # noqa: E402
from compiled_calls import REPORTS  # noqa: E402
from public import head, write  # noqa: E402
from public_judge import INTERFACE, REFUSED, RIGHT, WRONG, Verdict  # noqa: E402
from public_lines import Lines  # noqa: E402
from public_tools import INDUCTOR, OURS, ToolProcess, serve  # noqa: E402
from public_torch import doubled  # noqa: E402
from torch.utils._pytree import tree_leaves, tree_map  # noqa: E402

CORPUS, SEED = "compiled", 0
OPTIONS: dict[str, Any] = {
    OURS: {"backend": "taso_mirage", "options": {"measure": False, "budget": 1, "fallback": "eager"}},
    INDUCTOR: {"backend": "inductor", "options": {"fallback_random": True}},
}
"""The options of each tool. Ours keeps its program also where that is slower, as for functions of
few operations. Inductor draws eager mode's random numbers only if it is asked to."""
OWN, FLOOR = 4, 64
"""The factor of eager mode's own error, and roundings of the result beside it."""


def reports() -> dict[str, Any]:
    for path in sorted(HERE.glob("compiled_reports_*.py")):
        importlib.import_module(path.stem)
    return REPORTS


# ---------------------------------------------------------------- in the tool's process


def ordinary(value: Any) -> Any:
    """A tensor of floats of the same layout, with numbers between a half and three halves."""
    if isinstance(value, torch.Tensor) and (value.dtype.is_floating_point or value.dtype.is_complex):
        value.copy_(torch.linspace(0.5, 1.5, value.numel()).reshape(value.shape))
    return value


def wide(value: Any) -> Any:
    """A tensor of floats in double precision."""
    return value.double() if isinstance(value, torch.Tensor) and value.dtype.is_floating_point else value


def results(function: Callable[..., Any], name: str, double: bool = False) -> list[list[Any]]:
    """The results and the arguments after each call; in double precision where it is asked for."""
    found, calls = [], reports()[name].calls
    for given in (lambda: tree_map(ordinary, calls[0]()), *calls):
        arguments = tree_map(wide, given()) if double else given()
        torch.manual_seed(SEED)
        made = doubled(function, arguments) if double else function(*arguments)
        found.append(tree_leaves((made, arguments)))
    return found


def verdict(name: str, tool: str) -> Verdict:
    """The finding about a tool's compiled function."""
    torch._dynamo.reset()
    report = reports()[name]
    with torch.no_grad():
        original = results(report.function, name)
        try:
            exact = results(report.function, name, double=True)
        except Exception:  # bits that are read as another type, and the like
            exact = original
        try:
            with warnings.catch_warnings(record=True) as said:
                found = results(torch.compile(report.function, dynamic=report.dynamic, **OPTIONS[tool]), name)
        except Exception as error:  # a tool that fails has no result, whatever it failed by
            return Verdict(REFUSED, f"{type(error).__name__}: {str(error).strip()}".splitlines()[0][:200])
    for call, trio in enumerate(zip(found, original, exact, strict=True), 1):
        if (bad := compared(*trio)) is not None:
            return Verdict(bad.kind, f"call {call}, {bad.why}")
    notes = [str(each.message) for each in said if str(each.message).startswith("taso_mirage")]
    return Verdict(RIGHT, "; ".join(notes)[:200])


def compared(found: list[Any], original: list[Any], exact: list[Any]) -> Verdict | None:
    """The first difference between the results of a call and those of eager mode."""
    if len(found) != len(original):
        return Verdict(INTERFACE, f"{len(found)} results instead of {len(original)}")
    exact = exact if len(exact) == len(original) else original
    shapes = [differing_kind(one, two) for one, two in zip(found, original, strict=True)]
    if (kind := next(filter(None, shapes), None)) is not None:
        return Verdict(INTERFACE, f"result {shapes.index(kind)} is {kind}")
    values = [differing_value(*each) for each in zip(found, original, exact, strict=True)]
    if (value := next(filter(None, values), None)) is not None:
        return Verdict(WRONG, f"result {values.index(value)}: {value}")
    return None


def differing_kind(found: Any, original: Any) -> str:
    """How the kind of a value differs; strides of dims of one element, or of no element, count for
    nothing."""
    one, two = kind_of(found), kind_of(original)
    return "" if one == two else f"{one} instead of {two}"


def kind_of(value: Any) -> str:
    if not isinstance(value, torch.Tensor):
        return type(value).__name__
    strides = [s if n > 1 and value.numel() else "-" for s, n in zip(value.stride(), value.shape, strict=True)]
    return f"{str(value.dtype).removeprefix('torch.')}{list(value.shape)} of strides {strides}"


def differing_value(found: Any, original: Any, exact: Any) -> str:
    """How a value differs."""
    if not isinstance(found, torch.Tensor):
        return "" if found == original else f"{found} instead of {original}"
    if not (found.dtype.is_floating_point or found.dtype.is_complex):
        return "" if torch.equal(found, original) else "other integers than in eager mode"
    eps, wide = torch.finfo(found.dtype).eps, torch.complex128 if found.dtype.is_complex else torch.float64
    a, b = found.to(wide), original.to(wide)
    r = exact.to(wide) if isinstance(exact, torch.Tensor) and exact.shape == b.shape else b
    ends = ~torch.isfinite(b)
    if not torch.equal(torch.isfinite(a), ~ends) or not torch.equal(a[ends].nan_to_num(1.5), b[ends].nan_to_num(1.5)):
        return "other elements than in eager mode are infinite or undefined"
    inside = ~ends & torch.isfinite(r)
    error, own = (float((each - r)[inside].abs().amax()) if inside.any() else 0.0 for each in (a, b))
    bound = OWN * own + FLOOR * eps * (float(r[inside].abs().amax()) if inside.any() else 0.0)
    return (
        ""
        if error <= bound
        else f"error {error:.3g} against float64, above the bound {bound:.3g} (eager's is {own:.3g})"
    )


def answer(tool: str, source: str, target: str) -> None:
    """Write the finding about the function that a file names."""
    warnings.simplefilter("always")
    found = verdict(Path(source).read_text(), tool)
    Path(target).write_text(json.dumps([found.kind, found.why]))


# ---------------------------------------------------------------- beside the tools


def judge(names: list[str], tools: list[str], limit: float, lines: Lines | None) -> None:
    with ExitStack() as stack:
        place = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        processes = {each: stack.enter_context(closing(ToolProcess(each, limit, __file__))) for each in tools}
        for name, tool in ((name, tool) for name in names for tool in tools):
            if lines is not None and lines.has(f"{CORPUS}:{name}", [tool]):
                continue
            began = time.monotonic()
            source, target = place / "asked", place / "found"
            source.write_text(name)
            found = processes[tool].optimize(source, target) or Verdict(*json.loads(target.read_text()))
            if lines is not None:
                lines.add(f"{CORPUS}:{name}", tool, found, time.monotonic() - began)
            if found.kind != RIGHT or lines is None:
                print(f"{name} {tool}: {found.kind}: {found.why}", flush=True)


def main() -> None:
    if len(sys.argv) == 2 and sys.argv[1] in OPTIONS:
        serve(lambda source, target: answer(sys.argv[1], source, target))
        return
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tools", nargs="+", choices=[*OPTIONS], default=[*OPTIONS])
    parser.add_argument("--only", nargs="+", choices=[*reports()], metavar="REPORT", help="these, without results")
    parser.add_argument("--limit", type=float, default=120.0, help="seconds for a function")
    parser.add_argument("--lines", type=Path, default=Path("compiled.jsonl"), help="the file of findings")
    parser.add_argument("-o", "--output", type=Path, default=ROOT / "bench" / "results" / "compiled-cpu2.json")
    options = parser.parse_args()
    lines = None if options.only else Lines(options.lines, {**head(), "bench": "compiled"})
    judge(options.only or [*reports()], options.tools, options.limit, lines)
    if lines is not None:
        write([options.lines], options.output)


if __name__ == "__main__":
    main()
