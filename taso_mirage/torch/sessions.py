"""The sessions of an exported model on a device: optimized, with the found kernels, and several of
them if PyTorch rounds the operands of some operators to TF32."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import torch

from taso_mirage.api import optimize
from taso_mirage.errors import InputsRefused, InvalidOption, TasoMirageError, Unsupported
from taso_mirage.optimize_options import Options
from taso_mirage.report.result import Result
from taso_mirage.targets.cpu.target import CPU
from taso_mirage.targets.cuda.session import session_on_stream
from taso_mirage.targets.cuda.target import CUDA_TF32
from taso_mirage.targets.onnx_runtime import opened_session, resting_options
from taso_mirage.targets.protocol import Source, Trusted
from taso_mirage.torch.calls import BoundCalls, Calls, HostCalls, OpenSession
from taso_mirage.torch.comparison import slower
from taso_mirage.torch.cuda_graphs import TURN, TensorCall
from taso_mirage.torch.inductor import ComposedCalls, OptimizedPart
from taso_mirage.torch.precision import PrecisionPart, parts_of

WARM = 3
"""The number of calls after which nothing more is captured."""
FINISHING = 0.1
"""The share of a graph's budget for the steps that follow: the comparison with eager PyTorch, and
the times beside it."""
LEAST = 0.5
"""The least share of the budget for the optimizer, however long the export took."""


class Sessions:
    """Makes the sessions of a model. `options` are those of `optimize`; `optimizing` are the same
    with the precedent's options for a similar graph. The budget `began` with the graph's export, by
    `time.monotonic`; with the sessions, if left out."""

    def __init__(
        self,
        model: Any,
        device: Any,
        options: Mapping[str, Any],
        optimizing: Mapping[str, Any] | None = None,
        began: float | None = None,
    ) -> None:
        self._model, self._device, self._options = model, device, options
        self._optimizing = options if optimizing is None else optimizing
        self._began = time.monotonic() if began is None else began
        self._inputs = [str(each.name) for each in model.graph.inputs]
        self._results = [str(each.name) for each in model.graph.outputs]
        self._cuda = device.type == "cuda"
        self._stream = torch.cuda.Stream(device) if self._cuda else None  # no run can be captured in the default stream

    def parts(self, rounded: Collection[str], given: Sequence[Any]) -> Sequence[PrecisionPart]:
        """The model in parts that round the operands of these operators, or as one part that rounds
        nothing: the faster of both on these inputs, as they were exported."""
        parts = parts_of(self._model, rounded)
        if len(parts) == 1 or not self._options.get("measure", True):
            return parts
        whole = (PrecisionPart(self._model, False),)
        try:
            one, several = (partial(self._open_exported(each), given) for each in (whole, parts))
            for _ in range(WARM):
                one()
                several()
            return whole if slower(one, several, self._cuda) is None else parts
        except (TasoMirageError, RuntimeError):  # the run of the whole model gives the reason
            return whole

    def optimize(self, parts: Sequence[PrecisionPart], given: Sequence[Any]) -> tuple[list[Result], Calls]:
        """The optimizer's result for each part, measured and checked on these inputs too, and calls
        of sessions on them with their kernels.

        Raises InvalidOption, and Unsupported with the reason.
        """
        values = dict(zip(self._inputs, given, strict=True))
        results: list[Result] = []
        opened: list[OpenSession] = []
        whole = self._optimizing.get("budget", Options().budget)
        budget = budget_left(whole, time.monotonic() - self._began)
        with tempfile.TemporaryDirectory() as folder:
            for part in parts:
                path = Path(folder) / f"{len(opened)}.onnx"
                results.append(self._optimize_part(part, path, values, budget))
                opened.append(self._open(Trusted(str(path)), part.tf32))  # this process made its kernels
                if len(opened) < len(parts):
                    found = self._bound(opened[-1:], part.inputs, part.results)([values[name] for name in part.inputs])
                    values |= dict(zip(part.results, found, strict=True))
        if self._cuda or len(opened) > 1 or _has_bfloats(opened[0].session):
            return results, self._bound(opened, self._inputs, self._results)
        return results, HostCalls(opened[0].session)

    def compose(self, parts: Sequence[OptimizedPart], given: Sequence[Any], otherwise: TensorCall) -> ComposedCalls:
        """Calls of the optimized parts as one function by Inductor (see `inductor`)."""
        return ComposedCalls(parts, self._inputs, self._results, given, self._device, otherwise)

    def _optimize_part(self, part: PrecisionPart, path: Path, values: Mapping[str, Any], budget: float) -> Result:
        asked = {name: _array(values[name]) for name in part.inputs}
        share = len(part.model.graph) / max(len(self._model.graph), 1)  # a constant model has no nodes
        options = {
            "may_grow": True,
            **self._optimizing,
            "budget": min(share, 1.0) * budget,
        }  # the file is a temporary one
        options["elsewhere"] = False
        options["target"] = CUDA_TF32 if self._cuda and part.tf32 else self._device.type
        try:
            _, result = optimize(part.model, output=path, return_result=True, inputs=[asked], **options)
        except TasoMirageError as error:
            if isinstance(error, InvalidOption) and not isinstance(error, InputsRefused):
                raise
            raise Unsupported(f"its model does not run: {error}") from error
        return replace(result, written=())  # the file goes with its folder

    def _open_exported(self, parts: Sequence[PrecisionPart]) -> Calls:
        """Calls of the parts as they were exported."""
        with tempfile.TemporaryDirectory() as folder:
            opened: list[OpenSession] = []
            for part in parts:
                path = Path(folder) / f"{len(opened)}.onnx"
                part.save(path)
                opened.append(self._open(str(path), part.tf32))
        return self._bound(opened, self._inputs, self._results)

    def _open(self, source: Source, tf32: bool) -> OpenSession:
        if self._stream is None:
            threads = int(self._optimizing.get("threads") or 0)
            return OpenSession(opened_session(source, CPU.stamp.providers(), resting_options(), threads))
        with TURN, torch.cuda.device(self._device):  # the runtime leaves its own device current
            return OpenSession(*session_on_stream(source, self._stream.cuda_stream, tf32))

    def _bound(self, opened: Sequence[OpenSession], inputs: Sequence[str], results: Sequence[str]) -> Calls:
        return BoundCalls(opened, inputs, results, self._device, self._stream, self._cuda)


def budget_left(budget: float, spent: float) -> float:
    """The optimizer's seconds of a graph's budget, of which some were spent before."""
    return max(LEAST * budget, (1 - FINISHING) * budget - spent)


def _has_bfloats(opened: Any) -> bool:
    return any(each.type == "tensor(bfloat16)" for each in (*opened.get_inputs(), *opened.get_outputs()))


def _array(each: Any) -> Any:
    if isinstance(each, int):
        return np.array(each, np.int64)
    each = each.detach().cpu()
    if each.dtype == torch.bfloat16:
        return each.contiguous().view(torch.int16).numpy().view(ml_dtypes.bfloat16)
    return each.numpy()
