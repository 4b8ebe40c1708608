"""The backend of `torch.compile(model, backend="taso_mirage")`: a captured graph becomes programs,
one for each set of weights and kind of sizes; a graph that cannot, or is no faster, runs by
PyTorch, with a warning."""

from __future__ import annotations

import gc
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch._dynamo.convert_frame import compile_lock

from taso_mirage.errors import InvalidOption, Unsupported
from taso_mirage.optimize_options import Options
from taso_mirage.report.result import Result
from taso_mirage.search.effort import effort_named
from taso_mirage.torch.functionalization import (
    CALLS,
    Captured,
    StaysInPart,
    is_trained,
    only_looks,
    placeholders_of,
)
from taso_mirage.torch.program import Program, TooRounded, TooSlow
from taso_mirage.torch.random_ops import random_state, restore_random_state, split_random
from taso_mirage.torch.ways import COMPOSED, EAGER, INDUCTOR, OURS, Fallback, Way, check_fallback, in_pieces

GIVEN = frozenset("began command elsewhere output target shape inputs report certificate trace trust_kernels".split())
"""Options of `optimize` that the backend gives, or that name one file where there may be many
graphs."""
FALLBACK = "fallback"
"""The option that is the backend's own: see `taso_mirage.torch.ways.Fallback`."""
PROGRAMS = 16
"""Programs of one graph, at most."""
COMPILING = compile_lock
"""The lock of whoever compiles or captures a graph: PyTorch has one state for captures and exports,
and the optimizer has one process of the runtime, and one deadline."""
TRAINING = (
    "taso_mirage is for inference, and the result of this call requires gradients: call the model under "
    "torch.inference_mode() or torch.no_grad()"
)


def backend(
    captured: Captured, example: Sequence[Any], *, options: Mapping[str, Any] | None = None, mode: str | None = None
) -> Callable[..., Any]:
    """The function that dynamo calls for every graph that it captures.

    Nothing is compiled before the first call, where the real inputs are.
    """
    if mode is not None:
        raise InvalidOption(f"mode={mode!r}: taso_mirage has no modes; give options, as options={{'budget': 30}}")
    return CapturedGraph(captured, check_options(options or {}))


def check_options(options: Mapping[str, Any]) -> dict[str, Any]:
    """The options, if `optimize` has them, or `fallback`, with the values that their effort sets.

    Raises InvalidOption.
    """
    check_fallback(options)
    known = sorted({*Options.__dataclass_fields__, FALLBACK} - GIVEN)
    for name in options:
        if name not in known:
            raise InvalidOption(f"the option {name!r} is not known here; the options are: {', '.join(known)}")
    return {**effort_named(str(options.get("effort", "default"))).options, **options}


class CapturedGraph:
    """A captured graph as a function, or a `piece` of one, whose gradients nobody wants."""

    def __init__(self, captured: Captured, options: Mapping[str, Any], piece: bool = False) -> None:
        self._captured, self._measured = captured, options.get("measure", True)
        self._options = options
        self._programs: list[Program] = []
        self._pieces: list[CapturedGraph] = []
        self._plain: Callable[..., Any] = captured.forward
        self._stays, self._rounding = only_looks(captured), True
        self._trained = not piece and is_trained(captured)
        self._drawn = split_random(captured)
        self._way = None if self._stays else Way(OURS, operations(captured))
        self._fallback = Fallback(self._drawn.rest, check_fallback(options))

    def __call__(self, *arguments: Any) -> Any:
        if self._trained:
            raise InvalidOption(TRAINING)
        if not self._stays:
            state = None if self._drawn.draws is None else random_state(torch.cuda.is_initialized())
            given = self._drawn.arguments(arguments)
            try:
                return self._compute(given)
            except Unsupported as refused:
                with COMPILING:
                    if not self._stays:
                        self._stay(refused, given)
                if state is not None:
                    restore_random_state(state)  # eager PyTorch draws the same numbers again
            gc.collect()  # a dropped program has memory, and is in reference cycles
        return self._plain(*arguments)

    @property
    def results(self) -> list[Result]:
        """The optimizer's results for each of its programs, and for each part of one."""
        own = [result for program in self._programs for result in program.results]
        return own + [result for piece in self._pieces for result in piece.results]

    @property
    def ways(self) -> list[Way]:
        """How the graph runs, and each of its pieces; a piece that only reads its arguments is not
        named."""
        return [*([] if self._way is None else [self._way]), *(way for piece in self._pieces for way in piece.ways)]

    def _compute(self, given: Sequence[Any]) -> Any:
        try:
            return self._program(given)(given)
        except TooRounded:
            self._rounding, self._programs = False, []
            return self._program(given)(given)

    def _program(self, arguments: Sequence[Any]) -> Program:
        found = self._find(arguments)
        if found is not None:
            return found
        with COMPILING:
            found = self._find(arguments)  # another thread may have compiled it
            if found is not None:
                return found
            if self._stays:
                raise Unsupported("another thread has tried it")
            self._let_go()
            if len(self._programs) >= PROGRAMS:
                raise Unsupported(f"it was compiled {PROGRAMS} times, for other weights or sizes each time")
            options = {name: each for name, each in self._options.items() if name != FALLBACK}
            composing = self._fallback.measures(arguments)
            made = Program(self._drawn.rest, arguments, options, self._rounding, composing)
            if self._measured:
                self._check_beside_inductor(made, arguments)
            self._programs.append(made)
            if made.gain is not None and self._way is not None:
                reason = f"ONNX Runtime takes {made.gain:.2f} times as long"
                self._way = Way(COMPOSED, self._way.operations, reason)
            return made

    def _check_beside_inductor(self, made: Program, arguments: Sequence[Any]) -> None:
        found = self._fallback.beats(lambda *given: made(given), arguments)
        if found is not None:
            raise TooSlow(f"it takes {found:.2f} times as long here as Inductor's code", made.results)

    def _find(self, arguments: Sequence[Any]) -> Program | None:
        """The program for these arguments, if there is one."""
        fitting = (program for program in self._programs if program.holds(arguments) and not program.stale())
        return next(fitting, None)

    def _let_go(self) -> None:
        """Drop the programs whose weights have changed since they were compiled."""
        left = [program for program in self._programs if not program.stale()]
        if len(left) < len(self._programs):
            self._programs = left
            gc.collect()  # dropped programs have memory of the GPU, and are in reference cycles

    def _stay(self, refused: Unsupported, given: Sequence[Any]) -> None:
        """Let PyTorch run the graph from now on, all of it or in part; after an interrupt the next
        call tries again."""
        self._programs, self._pieces, self._plain = [], [], self._captured.forward
        count = staying = operations(self._captured)
        call = self._drawn.rest.forward
        code = self._fallback.code_for(call, given) if self._measured else None
        why = str(refused)
        if isinstance(refused, StaysInPart) and (found := in_pieces(self._captured, refused.stays, self._piece)):
            whole = self._without_draws(found[0])
            ratio = self._fallback.slower_than_eager(whole, given) if self._measured else None
            if ratio is None:
                (self._plain, staying), call = found, whole
            else:
                self._pieces, why = [], f"{why}, and in pieces around that it takes {ratio:.2f} times as long"
        by = EAGER
        if code is not None and self._fallback.beats(call, given) is not None:
            self._plain, self._pieces, staying, by = self._with_draws(code), [], count, INDUCTOR
        notes = refused.notes if isinstance(refused, TooSlow) else ()
        self._way = Way(by, staying, why, notes)
        self._stays = True
        what = (
            f"a graph of {count} operations" if staying == count else f"{staying} of the {count} operations of a graph"
        )
        runs = "run" if 1 < staying < count else "runs"
        where = "by Inductor" if by == INDUCTOR else "in eager PyTorch"
        why = "; ".join([why, *(note for note in notes if note.startswith("no kernels"))])
        warnings.warn(f"taso_mirage: {what} {runs} {where}: {why}", stacklevel=2)

    def _with_draws(self, call: Callable[..., Any]) -> Callable[..., Any]:
        """A call that takes the arguments of the graph, made of a call that takes random numbers,
        too."""
        drawn = self._drawn
        return call if drawn.draws is None else lambda *arguments: call(*drawn.arguments(arguments))

    def _without_draws(self, call: Callable[..., Any]) -> Callable[..., Any]:
        count = len(placeholders_of(self._captured))
        return call if self._drawn.draws is None else lambda *given: call(*given[:count])

    def _piece(self, part: Captured) -> CapturedGraph:
        """The program for a piece, with its share of the budget. It is measured beside eager
        PyTorch alone; all pieces together are measured beside Inductor."""
        budget = self._options.get("budget", Options().budget) * operations(part) / operations(self._captured)
        options = {**self._options, "budget": budget}
        options |= {} if self._fallback.code is None else {FALLBACK: EAGER}
        self._pieces.append(CapturedGraph(part, options, piece=True))
        return self._pieces[-1]


def operations(captured: Captured) -> int:
    """The number of operations of a captured graph."""
    return sum(node.op in CALLS for node in captured.graph.nodes)
