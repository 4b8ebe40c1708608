"""`taso_mirage.optimize` of a PyTorch module: the module under `torch.compile` with this package's
backend, run once."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch

from taso_mirage.report.result import Result
from taso_mirage.torch.backend import CapturedGraph, check_options
from taso_mirage.torch.functionalization import Captured
from taso_mirage.torch.ways import Way


class Optimized(torch.nn.Module):  # type: ignore[misc]
    """A module for inference: `module` is its original, whose weights it shares."""

    def __init__(self, module: Any, options: Mapping[str, Any], dynamic: bool | None) -> None:
        super().__init__()
        self.module = module
        self._options, self._dynamic = check_options(options), dynamic
        self._recurrent = any(isinstance(each, torch.nn.RNNBase) for each in module.modules())
        self._compile()

    def _compile(self) -> None:
        self._graphs: list[CapturedGraph] = []

        def backend(captured: Captured, example: Any) -> CapturedGraph:
            self._graphs.append(CapturedGraph(captured, self._options))
            return self._graphs[-1]

        # no submodule of this one, as its weights are the same; hooks are those of the original
        self.__dict__["_compiled"] = torch.compile(self.module, backend=backend, dynamic=self._dynamic).forward

    def __getstate__(self) -> dict[str, Any]:
        """The state without the compiled module: a copy is compiled at its first call, for its own
        weights."""
        return {name: each for name, each in self.__dict__.items() if name not in ("_compiled", "_graphs")}

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        self._compile()

    def forward(self, *arguments: Any, **named: Any) -> Any:
        if not self._recurrent and not torch.is_grad_enabled():
            return self.__dict__["_compiled"](*arguments, **named)  # no contexts: they take microseconds
        with torch.no_grad(), self._capture_options():
            return self.__dict__["_compiled"](*arguments, **named)

    def _capture_options(self) -> AbstractContextManager[Any]:
        """A context in which recurrent modules become part of graphs; dynamo leaves them out by
        default, as Inductor is no faster at them."""
        return torch._dynamo.config.patch(allow_rnn=True) if self._recurrent else nullcontext()

    @property
    def results(self) -> tuple[Result, ...]:
        """The optimizer's results for each graph, or for each part of one, for each set of weights
        and kind of sizes."""
        return tuple(result for graph in self._graphs for result in graph.results)

    @property
    def ways(self) -> tuple[Way, ...]:
        """How each graph and each piece of a graph runs, and why."""
        return tuple(way for graph in self._graphs for way in graph.ways)


def optimize_module(module: Any, example: Any, dynamic: bool | None = None, **options: Any) -> Optimized:
    """The module, compiled for inputs like the example: a tensor, a tuple of arguments, or a
    mapping of named ones."""
    found = Optimized(module, options, dynamic)
    if isinstance(example, Mapping):
        found(**example)
    else:
        found(*(example if isinstance(example, tuple | list) else (example,)))
    if not found._graphs:
        warnings.warn(
            f"taso_mirage: PyTorch captures no graph of {type(module).__name__}, so it runs in eager PyTorch; with "
            "TORCH_LOGS=graph_breaks in the environment PyTorch says why",
            stacklevel=3,
        )
    return found
