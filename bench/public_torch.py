"""Inductor on samples of GraphNet, for `public.py`: the compiled module beside the module itself in
eager mode and in float64, by the judge's criterion.

`answer` runs in a process of its own (`public_tools.py inductor`), since a sample is a program of
others. It reads a request, an .npz file that names the sample, the kind of run and the inputs, and
writes the outputs of each case as another one.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import ml_dtypes
import numpy as np

ROOT = Path(__file__).parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "bench")]

from public_judge import Judged, Verdict  # noqa: E402
from public_lines import NOT_JUDGED  # noqa: E402

from taso_mirage.measure.check import NUDGES, ROUGH, SMOOTH, CheckCase  # noqa: E402

if TYPE_CHECKING:
    from public_tools import ToolProcess

COMPILED, EAGER, EXACT = "compiled", "eager", "float64"
ROUNDING = 2.0**-24
"""The rounding of single precision, relative to a result."""
HALF = np.dtype(ml_dtypes.bfloat16)
Outputs = list[list[Any]]


def named(case: int, values: Iterable[Any]) -> dict[str, Any]:
    """The arrays of a case as those of an .npz file, which has no bfloat16."""
    return {
        f"{case}.{i}.{each.dtype.name}": each.view(np.int16) if each.dtype == HALF else each
        for i, each in enumerate(values)
    }


def arrays(file: Any, case: int) -> list[Any]:
    """The arrays of a case, in their order."""
    found = {}
    for name in file.files:
        number, _, rest = name.partition(".")
        if number == str(case):
            index, _, dtype = rest.partition(".")
            found[int(index)] = file[name].view(HALF) if dtype == HALF.name else file[name]
    return [found[index] for index in sorted(found)]


# ---------------------------------------------------------------- in the tool's process


def answer(source: str, target: str) -> None:
    """The outputs of a request's sample."""
    import torch

    from models import graphnet

    asked = np.load(source)
    sample = graphnet.load(Path(str(asked["sample"])))
    kind, seed, part = str(asked["run"]), int(asked["seed"]), float(asked["part"])
    module = torch.compile(sample.module) if kind == COMPILED else sample.module
    called = replace(sample, module=module)
    found = {}
    with torch.no_grad():
        for case in range(int(asked["cases"])):
            given = dict(zip(asked["names"].tolist(), map(tensor_of, arrays(asked, case)), strict=True))
            outputs = in_double(called, given, seed, part) if kind == EXACT else called.run(**given)
            found |= named(case, map(array_of, outputs))
    np.savez(target, **found)
    torch._dynamo.reset()


def in_double(sample: Any, given: dict[str, Any], seed: int, part: float) -> list[Any]:
    """The outputs with every float, argument or result, in double precision. Each is off by the
    `part` of a rounding of single precision, in a way of the seed's."""
    import torch

    generator = torch.Generator().manual_seed(seed)

    def noisy(exact: torch.Tensor) -> torch.Tensor:
        return exact * (1 + part * ROUNDING * (2 * torch.rand(exact.shape, generator=generator) - 1).double())

    def run(arguments: Any) -> list[Any]:
        outputs: list[Any] = replace(sample, arguments=arguments).run()
        return outputs

    return cast(list[Any], doubled(run, ({**sample.arguments, **given},), noisy if part else None))


def doubled(function: Callable[..., Any], arguments: Any, change: Callable[[Any], Any] | None = None) -> Any:
    """The result of a function of torch with every float, argument or result, in double precision,
    and changed by `change`."""
    import torch
    from torch.overrides import TorchFunctionMode
    from torch.utils._pytree import tree_map

    def wide(value: Any) -> Any:
        if not isinstance(value, torch.Tensor) or not value.dtype.is_floating_point:
            return value
        return value.double() if change is None else change(value.double())

    def wide_type(value: Any) -> Any:
        return torch.float64 if isinstance(value, torch.dtype) and value.is_floating_point else value

    class Double(TorchFunctionMode):
        def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            args, kwargs = tree_map(wide_type, (args, kwargs or {}))
            return tree_map(wide, function(*args, **kwargs))

    given = tree_map(wide, arguments)
    with Double():
        return function(*given)


def array_of(tensor: Any) -> Any:
    """A torch tensor on this machine's cores as an array."""
    import torch

    there = tensor.contiguous()
    return there.view(torch.int16).numpy().view(HALF) if there.dtype == torch.bfloat16 else there.numpy()


def tensor_of(array: Any) -> Any:
    """An array as a torch tensor."""
    import torch

    return (
        torch.from_numpy(array.view(np.int16)).view(torch.bfloat16) if array.dtype == HALF else torch.from_numpy(array)
    )


# ---------------------------------------------------------------- beside the judge


@dataclass(frozen=True, slots=True)
class TorchRuns:
    """Runs of a sample on the inputs of some cases."""

    sample: Path
    cases: Sequence[CheckCase]
    tool: ToolProcess
    place: Path

    def outputs(self, run: str, seed: int = 0, part: float = 0.0) -> Outputs | Verdict:
        """The outputs of every case, or the finding about a run that has none."""
        given: dict[str, Any] = {}
        for c, case in enumerate(self.cases):
            given |= named(c, map(np.asarray, case.inputs.values()))
        source, target = self.place / "request.npz", self.place / "answer.npz"
        said = {"sample": str(self.sample), "run": run, "seed": seed, "part": part, "cases": len(self.cases)}
        np.savez(source, names=np.array([*self.cases[0].inputs]), **said, **given)
        if (failed := self.tool.optimize(source, target)) is not None:
            return failed
        with np.load(target) as found:
            return [arrays(found, c) for c in range(len(self.cases))]


def verdict(judged: Judged, runs: TorchRuns) -> Verdict:
    """The finding about the compiled module."""
    original, exact = runs.outputs(EAGER), runs.outputs(EXACT)
    for each in (original, exact):
        if isinstance(each, Verdict):
            return Verdict(NOT_JUDGED, each.why)
    assert not isinstance(original, Verdict)
    assert not isinstance(exact, Verdict)
    found = runs.outputs(COMPILED)
    if isinstance(found, Verdict):
        return found
    moves = cache(lambda seed, part: _moves(runs, exact, seed, part))
    cases = [
        CheckCase(case.name, case.inputs, old, right, _nudged(moves, c), cache(_resolution(moves, c)))
        for c, (case, old, right) in enumerate(zip(judged.cases, original, exact, strict=True))
    ]
    return replace(judged, cases=cases).verdict_on(found)


Moves = Callable[[int, float], list[list[float]]]


def _moves(runs: TorchRuns, exact: Outputs, seed: int, part: float) -> list[list[float]]:
    """How far each output of each case moves if every number is off by a part of a rounding."""
    found = runs.outputs(EXACT, seed, part)
    if isinstance(found, Verdict):
        return [[0.0 for _ in outputs] for outputs in exact]
    return [[_apart(*each) for each in zip(*pair, strict=True)] for pair in zip(found, exact, strict=True)]


def _apart(near: Any, right: Any) -> float:
    far = np.abs(near - right) if right.dtype.kind == "f" and near.shape == right.shape else np.zeros(0)
    return float(far[np.isfinite(far)].max(initial=0.0))


def _nudged(moves: Moves, case: int) -> Callable[[int], list[float]]:
    return lambda ways: [max(each) for each in zip(*(moves(seed, 1.0)[case] for seed in NUDGES[:ways]), strict=True)]


def _resolution(moves: Moves, case: int) -> Callable[[], list[float]]:
    """The resolution of an output (`measure/check.py`) to first order; 0 where it jumps."""

    def found() -> list[float]:
        near, far = ([max(e) for e in zip(*(moves(s, part)[case] for s in NUDGES), strict=True)] for part in ROUGH)
        steps = ROUGH[1] / ROUGH[0]
        smooth = [steps / SMOOTH * a <= b <= steps * SMOOTH * a for a, b in zip(near, far, strict=True)]
        return [a / ROUGH[0] if right else 0.0 for a, right in zip(near, smooth, strict=True)]

    return found
