"""The judge of `public.py`: an optimized model beside its original, whoever optimized it.

A result is judged in this order, and the first finding counts: the runtime does not load it, its
interface differs, its outputs differ, its certificate is refused, it is much larger. Outputs are
compared with the original's float64 reference by the criterion of docs/design/check.md, on several
inputs. Only originals that ONNX Runtime loads and that have such a reference are judged. Results
run at the level of the runtime's own optimizations at which the original is right, so that no tool
answers for the runtime. Of a tool that runs models and writes none, only the outputs are judged.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from itertools import islice
from typing import Any

import onnx

from taso_mirage.errors import TasoMirageError
from taso_mirage.ir.model import Model
from taso_mirage.measure import native
from taso_mirage.measure import session as runtime
from taso_mirage.measure.check import CheckCase, check_cases, compare, plausible
from taso_mirage.measure.magnitudes import equal_values, rounds
from taso_mirage.measure.native import Arrays
from taso_mirage.measure.target import CPU, UNOPTIMIZED, Target
from taso_mirage.onnx_io.files import from_memory

REFUSED, CRASHED, LATE = "refused", "crashed", "late"
"""Findings about the tool: it raised an error, its process died, or it took too long."""
NOT_LOADED, INTERFACE, WRONG, LARGER, RIGHT = "not loaded", "interface", "wrong", "larger", "right"
UNVERIFIED = "unverified"
"""The finding about a right result whose certificate `taso-mirage verify` does not follow."""
KINDS = (CRASHED, LATE, REFUSED, NOT_LOADED, WRONG, INTERFACE, UNVERIFIED, LARGER, RIGHT)
CASES, SIZE = 4, 4
"""The number of input sets on which outputs are compared, and the size of dims that are free."""
GROWTH, SPARE = 1.5, 1 << 16
"""A result is larger if it has more than so many times the original's bytes, and so many more."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """A kind of finding, and what was found; `certified` if the result came with a certificate."""

    kind: str
    why: str = ""
    certified: bool = False

    def with_certificate(self, verify: Callable[[], Verdict | None]) -> Verdict:
        """The finding about a result with a certificate; `verify` gives a finding where it is not
        followed."""
        failed = verify() if self.kind in (RIGHT, LARGER) else None
        found = self if failed is None else Verdict(UNVERIFIED, f"{failed.kind}: {failed.why}")
        return replace(found, certified=True)


@dataclass(frozen=True, slots=True)
class Judged:
    """An original that can be judged, with its float64 references, and the highest level of the
    runtime's optimizations at which it is right: results run there."""

    proto: onnx.ModelProto
    model: Model
    cases: Sequence[CheckCase]
    target: Target = CPU

    @staticmethod
    def of(proto: onnx.ModelProto, count: int = CASES, seconds: float = math.inf) -> Judged | str:
        """With `count` sets of inputs, or those that have a reference within so many seconds; the
        reason where ONNX Runtime does not load the model, or where it has no float64 reference."""
        try:
            model = from_memory(proto)
            asked = partial(_cases, proto, model, count, seconds)
            with suppress(TasoMirageError):
                if (cases := asked(CPU)) and all(map(_explained, cases)):
                    return Judged(proto, model, cases)
            plain = asked(UNOPTIMIZED)
            for target in (CPU, *CPU.lower) if plain else ():
                with suppress(TasoMirageError):
                    session = runtime.Session(proto.SerializeToString(), target)
                    if all(each.passed for each in compare(model, session, plain)):
                        return Judged(proto, model, asked(target), target)
        except TasoMirageError as error:
            return native.first_line(error)[:200]
        return "there is no float64 reference"

    def verdict(self, result: onnx.ModelProto) -> Verdict:
        """The first finding about a tool's result."""
        try:
            session = runtime.Session(result.SerializeToString(), self.target)
        except TasoMirageError as error:
            return Verdict(NOT_LOADED, native.first_line(error)[:200])
        if (changed := next(differences(self.proto, result), None)) is not None:
            return Verdict(INTERFACE, changed)
        try:
            bad = next((d for d in compare(self.model, session, self.cases) if not d.passed), None)
        except TasoMirageError as error:
            return Verdict(WRONG, native.first_line(error)[:200])
        if bad is not None:
            return Verdict(WRONG, str(bad))
        before, after = self.proto.ByteSize(), result.ByteSize()
        if after > GROWTH * before and after > before + SPARE:
            return Verdict(LARGER, f"{after} bytes instead of {before}")
        return Verdict(RIGHT)

    def verdict_on(self, outputs: Sequence[Sequence[Any]]) -> Verdict:
        """The finding about the outputs of a tool on each of the cases."""
        count = len(self.model.output_names)
        for each in outputs:
            if len(each) != count:
                return Verdict(INTERFACE, f"{len(each)} outputs instead of {count}")
        found = compare(self.model, _Replay(iter(outputs)), self.cases)
        bad = next((d for d in found if not d.passed), None)
        return Verdict(RIGHT) if bad is None else Verdict(WRONG, str(bad))


@dataclass(frozen=True, slots=True)
class _Replay:
    """Outputs that are there, in the order of the cases."""

    outputs: Iterator[Sequence[Any]]

    def run(self, inputs: Arrays) -> list[Any]:
        return [*next(self.outputs)]


def _cases(proto: onnx.ModelProto, model: Model, count: int, seconds: float, target: Target) -> list[CheckCase]:
    """Input sets with the original's results on a target and in float64."""
    session = runtime.Session(proto.SerializeToString(), target)
    sizes = dict.fromkeys(model.symbols(), SIZE) | model.sizes
    return list(islice(check_cases(model, session, sizes, most=count, seconds=seconds), count))


def _explained(case: CheckCase) -> bool:
    """Whether rounding explains the difference of the original from float64."""
    pairs = zip(case.original, case.reference, strict=True)
    exact = all(rounds(old) or equal_values(old, new) for old, new in pairs)
    return exact and plausible(case.original, case.reference)


def differences(old: onnx.ModelProto, new: onnx.ModelProto) -> Iterator[str]:
    """Differences of the interface: inputs that a caller must give or may give, outputs, their
    order and types, and the version of ONNX's own operators."""
    needed, asked = (_without_defaults(each.graph) for each in (old, new))
    yield from _values("input", needed, asked, frozenset())
    named = {d.dim_param for each in old.graph.input for d in each.type.tensor_type.shape.dim}
    free = {d.dim_param for each in old.graph.output for d in each.type.tensor_type.shape.dim} - named
    yield from _values("output", old.graph.output, new.graph.output, frozenset(free))
    optional = [each.name for each in old.graph.input if each not in needed]
    left = [name for name in optional if name not in {each.name for each in new.graph.input}]
    if left:
        yield f"the input {left[0]!r}, which has a default, is not there"
    versions = [{o.domain: o.version for o in each.opset_import}.get("") for each in (old, new)]
    if None not in versions and versions[0] != versions[1]:
        yield f"opset {versions[1]} instead of {versions[0]}"


def _without_defaults(graph: onnx.GraphProto) -> list[onnx.ValueInfoProto]:
    held = {each.name for each in graph.initializer}
    return [each for each in graph.input if each.name not in held]


def _values(
    what: str, old: Sequence[onnx.ValueInfoProto], new: Sequence[onnx.ValueInfoProto], free: frozenset[str]
) -> Iterator[str]:
    names = [[each.name for each in some] for some in (old, new)]
    if names[0] != names[1]:
        yield f"{what}s {', '.join(names[1])} instead of {', '.join(names[0])}"
        return
    for one, two in zip(old, new, strict=True):
        if not _is_as(one.type, two.type, free):
            yield f"{what} {one.name!r} is {_shown(two.type)} instead of {_shown(one.type)}"


def _is_as(old: onnx.TypeProto, new: onnx.TypeProto, free: frozenset[str]) -> bool:
    """Whether a type is the same; `free` dims, which no input has, and unknown ones may be more
    precise."""
    if old.WhichOneof("value") != new.WhichOneof("value"):
        return False
    a, b = old.tensor_type, new.tensor_type
    if a.elem_type != b.elem_type:
        return False
    if not a.HasField("shape"):
        return True
    return len(a.shape.dim) == len(b.shape.dim) and all(
        one == two or one == "?" or one in free for one, two in zip(_dims(a), _dims(b), strict=True)
    )


def _dims(type: onnx.TypeProto.Tensor) -> list[str]:
    return [d.dim_param or (str(d.dim_value) if d.HasField("dim_value") else "?") for d in type.shape.dim]


def _shown(type: onnx.TypeProto) -> str:
    if not type.HasField("tensor_type"):
        return str(type.WhichOneof("value"))
    shape = f"[{','.join(_dims(type.tensor_type))}]" if type.tensor_type.HasField("shape") else ""
    return f"{onnx.TensorProto.DataType.Name(type.tensor_type.elem_type).lower()}{shape}"
