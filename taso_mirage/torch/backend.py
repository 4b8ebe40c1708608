"""The backend of `torch.compile(model, backend="taso_mirage")`: a captured graph becomes programs,
one for each set of weights and kind of sizes; what cannot stays in eager PyTorch, with a
warning."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch._dynamo.convert_frame import compile_lock

from taso_mirage.api import Options
from taso_mirage.errors import InvalidOption, Unsupported
from taso_mirage.report.result import Result
from taso_mirage.torch.draws import DrawnApart, drawn_before, random_state, restore_random_state
from taso_mirage.torch.halves import CALLS, Captured, halves, is_trained, only_looks, states_of_norms
from taso_mirage.torch.pieces import StaysInPart, in_pieces
from taso_mirage.torch.program import Program, TooRounded

OURS = frozenset(("output", "target", "shape", "inputs", "report", "certificate", "trust_kernels", "command"))
"""Options of `optimize` that the backend gives, or that name one file where there may be many
graphs."""
PROGRAMS = 16
"""Programs of one graph, at most."""
COMPILING = compile_lock
"""Whoever compiles a graph has it, or captures one: PyTorch has one state for captures and exports,
and the optimizer has one process of the runtime, and one deadline."""
TRAINING = (
    "taso_mirage is for inference, and the result of this call wants gradients: call the model under "
    "torch.inference_mode() or torch.no_grad()"
)


def backend(
    captured: Captured, example: Sequence[Any], *, options: Mapping[str, Any] | None = None, mode: str | None = None
) -> Callable[..., Any]:
    """What dynamo calls for every graph that it captures.

    Nothing is compiled before the first call, where the real inputs are.
    """
    if mode is not None:
        raise InvalidOption(f"mode={mode!r}: taso_mirage has no modes; give options, as options={{'budget': 30}}")
    return CapturedGraph(captured, checked_options(options or {}))


def checked_options(options: Mapping[str, Any]) -> dict[str, Any]:
    """The options, if `optimize` has them.

    Raises InvalidOption.
    """
    known = sorted(set(Options.__dataclass_fields__) - OURS)
    for name in options:
        if name not in known:
            raise InvalidOption(f"the option {name!r} is not known here; the options are: {', '.join(known)}")
    return dict(options)


class CapturedGraph:
    """A captured graph as a function, or a `piece` of one, whose gradients nobody wants."""

    def __init__(self, captured: Captured, options: Mapping[str, Any], piece: bool = False) -> None:
        self._captured, self._options = captured, options
        self._programs: list[Program] = []
        self._pieces: list[CapturedGraph] = []
        self._plain: Callable[..., Any] = captured.forward
        self._eager, self._rounding = only_looks(captured), True
        self._trained = not piece and is_trained(captured)
        self._drawn = DrawnApart(captured, None)
        try:
            self._drawn = drawn_before(captured)
            self._halves = halves(self._drawn.rest, states_of_norms(captured))
        except Unsupported as refused:
            self._stay(refused)

    def __call__(self, *arguments: Any) -> Any:
        if self._trained:
            raise InvalidOption(TRAINING)
        if not self._eager:
            state = None if self._drawn.draws is None else random_state(torch.cuda.is_initialized())
            try:
                return self._computed(self._drawn.arguments(arguments))
            except Unsupported as refused:
                with COMPILING:
                    if not self._eager:
                        self._stay(refused)
                if state is not None:
                    restore_random_state(state)  # eager PyTorch draws the same numbers again
        return self._plain(*arguments)

    @property
    def results(self) -> list[Result]:
        """What the optimizer made of each of its programs, and of each part of one."""
        own = [result for program in self._programs for result in program.results]
        return own + [result for piece in self._pieces for result in piece.results]

    def _computed(self, given: Sequence[Any]) -> Any:
        try:
            program = self._program(given)
            computed = program(given)
        except TooRounded:
            self._rounding, self._programs = False, []
            program = self._program(given)
            computed = program(given)
        return computed if program.outer is None else program.outer(*given, *computed)

    def _program(self, arguments: Sequence[Any]) -> Program:
        found = self._known(arguments)
        if found is not None:
            return found
        with COMPILING:
            found = self._known(arguments)  # another thread may have made it
            if found is not None:
                return found
            if self._eager:
                raise Unsupported("another thread has tried it")
            self._programs = [program for program in self._programs if not program.stale()]
            if len(self._programs) >= PROGRAMS:
                raise Unsupported(f"it was compiled {PROGRAMS} times, for other weights or sizes each time")
            made = Program(self._drawn.rest, self._halves, arguments, self._options, self._rounding)
            self._programs.append(made)
            return made

    def _known(self, arguments: Sequence[Any]) -> Program | None:
        """The program for these arguments, if there is one."""
        fitting = (program for program in self._programs if program.holds(arguments) and not program.stale())
        return next(fitting, None)

    def _stay(self, refused: Unsupported) -> None:
        """Run in eager PyTorch from now on, all of it or in part."""
        self._eager, self._programs = True, []
        count = sum(node.op in CALLS for node in self._captured.graph.nodes)
        if isinstance(refused, StaysInPart) and (found := in_pieces(self._captured, refused.stays, self._piece)):
            self._plain, staying = found
            what = f"{staying} of the {count} operations of a graph {'runs' if staying == 1 else 'run'}"
        else:
            what = f"a graph of {count} operations runs"
        warnings.warn(f"taso_mirage: {what} in eager PyTorch: {refused}", stacklevel=2)

    def _piece(self, part: Captured) -> CapturedGraph:
        self._pieces.append(CapturedGraph(part, self._options, piece=True))
        return self._pieces[-1]
