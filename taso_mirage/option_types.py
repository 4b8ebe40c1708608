"""The types of the options of `taso_mirage.optimize`, for type checkers and the documentation."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from typing_extensions import TypedDict

if TYPE_CHECKING:
    from taso_mirage.measure.target import Target
    from taso_mirage.search.config import Candidates, Progress, Stop
    from taso_mirage.search.rulesets import RuleSet


class OptimizeOptions(TypedDict, total=False):
    """The options of `taso_mirage.optimize` for an ONNX model. All may be left out."""

    effort: Literal["quick", "default", "thorough"]
    """The extent of searches and check. It sets the options `budget`, `measure`, `partial`,
    `strategy` and `kernels` that are not given."""
    output: str | Path | None
    """The file of the optimized model. Default: `MODEL.optimized.onnx` for a path, none for a model
    in memory."""
    target: str | Target
    """The runtime and its device: "cpu" (default), "cuda" or "openvino"; "auto" is "cpu" or
    "openvino", the faster by measurement."""
    threads: int | None
    """Threads of one run on the CPU (intra-op), for measurements, kernels and sessions on the
    result. Default: as many as there are cores."""
    portable: bool
    """Whether to use only operators of ONNX, and no fused operators of a runtime."""
    strategy: Literal["best-first", "saturate", "both"]
    """The search of one part of a model; "saturate" is equality saturation. Default: best-first."""
    shape: str | Sequence[str]
    """Sizes of free dims, by name ("batch:8") or by input ("x:1,128"); several sets have weights:
    "batch:1+seq:512@3"."""
    inputs: str | Path | Mapping[str, Any] | Sequence[str | Path | Mapping[str, Any]]
    """Inputs for timing, and for the check beside random ones: .npz files, or arrays by input
    name."""
    budget: float
    """Seconds of the whole call. Default: 60, or 600 with effort="thorough"."""
    run_limit: float
    """Seconds that the runtime may take for one load, run or measurement."""
    kernels: Literal["off", "cached", "search"] | None
    """Fused kernels: none, only those that were found on this machine before, or a search."""
    partial: bool
    """Whether corrected mutants of costly operators (PET) take part in the search."""
    alpha: float
    """The largest cost, relative to the best state, of a state that the search expands."""
    measure: bool
    """Whether operators and models are measured; otherwise costs are estimated by a roofline."""
    scheduler: str | None
    """The address of a Dask scheduler whose workers do all work."""
    explain: bool
    """Whether every change is explained, with its place, its gain and its proof."""
    report: str | Path | None
    """The file of an HTML page about the result."""
    certificate: str | Path | None
    """The file of all steps with their proofs, for `taso-mirage verify`."""
    trace: str | Path | None
    """The folder for the graph after every stage and every applied rule, as text."""
    trust_kernels: bool
    """Whether fused kernels in the given file are compiled and run: they are code."""
    fix_defaults: bool
    """Whether inputs that have an initializer as their default become weights."""
    in_place: bool
    """Whether the result replaces the given file."""
    may_grow: bool | Callable[[str], bool]
    """Whether the file may be more than 1.2 times as large as the original; a function is told how
    much it would grow, and answers."""
    allow_rounding: str | float | None
    """For quantized models: the quantization steps by which rewrites may change an output, as a
    number, or with the names of rules, "1:add.3"."""
    rules: RuleSet | str | Path | Sequence[str | Path] | None
    """The rules that may be applied, or files of rules that are added to all others."""
    elsewhere: bool
    """Whether the file may also be opened on other machines or without the library of kernels, and
    is no slower there. Default: true."""
    progress: Progress
    """A function that is called with a stage, how much of it is done, and how much there is (0: not
    known)."""
    candidates: Candidates
    """A function that is called with every model that is tried, its predicted seconds, its times,
    and the reason why it was dropped."""
    stop: Stop | None
    """A flag that ends the searches, so that the best result so far is returned."""
    command: Sequence[str]
    """The command that a report says to repeat."""
    began: float | None
    """The start of the budget, by `time.monotonic`. Default: the call."""


class ModuleOptions(OptimizeOptions, total=False):
    """The options of `taso_mirage.optimize` for a PyTorch module."""

    dynamic: bool | None
    """Whether all sizes are free from the start. Default: sizes become free when they change."""
    fallback: Literal["eager", "inductor"]
    """The alternatives with which graphs are compared, and by which they run if that is faster:
    eager PyTorch alone, or also TorchInductor."""
