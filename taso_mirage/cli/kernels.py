"""The command `taso-mirage kernels`: the fusible regions of a model, and the best muGraph of each.

Heavy modules are imported when the command runs.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from taso_mirage.cli.interrupt import FOUND, interruptible
from taso_mirage.cli.options import LARGEST_COUNT, JsonOption, ModelFile, ShapeOption
from taso_mirage.errors import InvalidOption, SyntaxProblem, TasoMirageError
from taso_mirage.system.terminal import plural, say, say_lines

if TYPE_CHECKING:
    from taso_mirage.devices.device import Device
    from taso_mirage.ir.model import Model
    from taso_mirage.ir.terms import Graph
    from taso_mirage.regions.survey import Surveyed
    from taso_mirage.rewriting.equation import Equation

PLACES = 3
"""The number of places of a region that are named."""


def kernels_command(
    model: ModelFile,
    budget: Annotated[
        float,
        typer.Option(min=0, metavar="SECONDS", help="Time limit of the search in seconds, shared by the regions."),
    ] = 60.0,
    shape: ShapeOption = None,
    target: Annotated[
        str | None,
        typer.Option(
            metavar="cpu|cuda",
            help="Target for which times are predicted and programs are generated. Default: cuda where there is a GPU, else cpu.",
        ),
    ] = None,
    checkpoint: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Save results in this file, and continue from it.")
    ] = None,
    output: Annotated[
        Path | None,
        typer.Option(
            "-o", "--output", metavar="DIR", help="Write the program of every region, C++ or Triton, into this folder."
        ),
    ] = None,
    page: Annotated[
        Path | None,
        typer.Option("--report", metavar="OUT.html", help="Write an HTML page with the regions and their muGraphs."),
    ] = None,
    show: Annotated[
        int | None,
        typer.Option(
            "--show",
            min=1,
            max=LARGEST_COUNT,
            metavar="N",
            help="Search region N alone, and print its muGraph and its program, for a GPU with the schedule and the tuner's "
            "estimate of each kernel.",
        ),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """List the regions of MODEL.onnx that fused kernels can replace, and search for the best
    kernels of each.

    Laws that remove operators are applied first, so that a guard behind a softmax does not prevent
    its online form.
    """
    from taso_mirage.measure.shapes import parse_shape
    from taso_mirage.onnx_io import load
    from taso_mirage.onnx_io.files import data_files
    from taso_mirage.onnx_io.outputs import check_folder, check_outputs
    from taso_mirage.search.config import Config, representative
    from taso_mirage.system.files import write_file

    loaded = load(model)
    files = {"checkpoint": checkpoint, "report": page}
    check_outputs(files, {"the model": model}, data_files(loaded))
    if output is not None:
        check_folder(output)
    sizes = representative(loaded, Config(shapes=((parse_shape(loaded, shape or []), 1.0),)))
    found = _surveyed(loaded, sizes, budget, checkpoint, show, _device(target), quiet=as_json)
    programs = {} if output is None else _programs(found, output)
    if page is not None:
        write_file(page, _page(model, sizes, found, programs).encode(errors="replace"))
    if as_json:
        _say_json(model, sizes, found, programs, show)
        return
    for line in _lines(model, sizes, found, programs, show):
        say(line)
    if show is not None:
        _show(found[show - 1])


def _device(target: str | None) -> Device:
    """The hardware of a target; of the GPU that is there, or of the CPU, if none is named.

    Raises InvalidOption for a target without kernels.
    """
    from taso_mirage.devices.cuda.device import gpu
    from taso_mirage.measure.target import target as target_named
    from taso_mirage.measure.target import targets_with_kernels

    named = target_named(target or ("cpu" if gpu() is None else "cuda"))
    if named.lowering is None:
        known = ", ".join(targets_with_kernels())
        raise InvalidOption(
            f"--target {target}: there are no fused kernels for it; the targets with kernels are {known}"
        )
    return named.device


def _surveyed(
    model: Model,
    sizes: Mapping[str, int],
    budget: float,
    checkpoint: Path | None,
    show: int | None,
    device: Device,
    quiet: bool,
) -> list[Surveyed]:
    """The regions of a model with the best muGraph of each, or of the one with the number `show`
    alone; the checkpoint is read before, and written after each."""
    from taso_mirage.regions.kernel_regions import kernel_regions
    from taso_mirage.regions.survey import Surveyed, survey
    from taso_mirage.report.summary import Stages
    from taso_mirage.system.locks import locked

    kept = () if checkpoint is None else (checkpoint,)
    with locked(*kept), Stages(quiet=quiet) as stages, interruptible(FOUND, begun=True) as stop:
        known = {} if checkpoint is None else _known(checkpoint, device)
        stages("find regions", 0, 0)
        wanted = kernel_regions(normal(model, sizes), sizes)
        searched = list(range(len(wanted))) if show is None else [_number(show, len(wanted)) - 1]
        found = [Surveyed(region, None, "not searched", 0.0, 0.0, {}) for region in wanted]
        stages("search", 0, len(searched))
        asked = [wanted[i] for i in searched]
        for done, each in enumerate(survey(asked, budget, known, device, lambda: stop.asked)):
            found[searched[done]] = each
            stages("search", done + 1, len(searched))
            if checkpoint is not None:
                _keep(checkpoint, known, found)
    return found


def _number(show: int, count: int) -> int:
    """The number of a region. Raises InvalidOption where the model has no such region."""
    if show > count:
        raise InvalidOption(f"--show {show}: the model has {plural(count, 'region')}; leave --show out for the list")
    return show


def _show(each: Surveyed) -> None:
    """Print the muGraph of a region, its kernels and their program."""
    from taso_mirage.report.kernel_details import details_lines

    if each.found is None:
        return
    say("")
    try:
        say_lines(details_lines(each.found))
    except TasoMirageError as error:
        say(f"no program: {error}")


def _details(each: Surveyed) -> dict[str, Any]:
    """The kernels of a region and their program, for JSON; why there is none under "problem"."""
    from taso_mirage.report.kernel_details import details_data

    if each.found is None:
        return {}
    try:
        return details_data(each.found)
    except TasoMirageError as error:
        return {"problem": f"no program: {error}"}


def _say_json(
    model: Path, sizes: Mapping[str, int], found: Sequence[Surveyed], programs: Mapping[int, str], show: int | None
) -> None:
    from taso_mirage.regions.survey import survey_data

    rows = [{**survey_data(each), "program": programs.get(i)} for i, each in enumerate(found)]
    if show is not None:
        rows[show - 1] |= _details(found[show - 1])
    say(json.dumps({"model": str(model), "sizes": dict(sizes), "regions": rows}, indent=2))


# ---------------------------------------------------------------- before the search


def normal(model: Model, sizes: Mapping[str, int]) -> Model:
    """The model after the laws that remove operators.

    A term has the name of the ONNX node that it comes from, or of one that uses it.
    """
    from dataclasses import replace

    from taso_mirage.ir.terms import users
    from taso_mirage.report.changes import carry_names
    from taso_mirage.rewriting.index import Rules
    from taso_mirage.search.passes import Context, simplify
    from taso_mirage.search.rulesets import rules

    names = {**model.names, **{node: o.name for node, o in model.origins.items() if o.name}}
    last_names = tuple([names.get(o, name) for o, name in zip(model.graph.outputs, model.output_names, strict=True)])
    named = replace(model, names=names, output_names=last_names, sizes=sizes)
    context = Context({"com.microsoft": 1, **model.opsets}, sizes)
    outputs, steps = simplify(model.graph.outputs, Rules(filter(_removes, rules())), context)
    names, made = carry_names(named, steps), named.with_graph(outputs)
    uses = users(made.nodes())
    for node in reversed(made.nodes()):
        using = next((names[u] for u in uses.get(node, ()) if u in names), None)
        if node.args and using is not None:
            names.setdefault(node, using)
    return replace(made, names=names, output_names=model.output_names, origins={})


def _removes(law: Equation) -> bool:
    """Whether a law only removes operators. Laws that fuse operators are excluded, because a region
    gains more from the separate operators."""
    before, after = ({n.op for n in terms if n.args} for terms in (law.lhs_terms, law.rhs_terms))
    return after <= before


# ---------------------------------------------------------------- checkpoints and programs


def _known(path: Path, device: Device) -> dict[Graph, Mapping[str, Any]]:
    """Regions that an earlier run kept in a file; nothing if there is no such file yet."""
    from taso_mirage.regions.survey import VERSION, known_regions
    from taso_mirage.system.toml import read_json

    if not path.exists():
        return {}
    try:
        kept = read_json(path)
        if not isinstance(kept, dict) or kept.get("survey") != VERSION:
            raise SyntaxProblem(f"not a checkpoint of `taso-mirage kernels`, version {VERSION}")
        return known_regions(kept.get("regions"), device)
    except (OSError, ValueError, TasoMirageError) as error:
        said = f"no JSON: {error}" if isinstance(error, ValueError) else str(error)
        raise InvalidOption(f"--checkpoint {path}: {said}; name another file, or remove it") from None


def _keep(path: Path, known: Mapping[Graph, Mapping[str, Any]], found: Sequence[Surveyed]) -> None:
    """Write the regions of any model: those found now, and those of earlier runs."""
    from taso_mirage.regions.survey import VERSION, survey_data
    from taso_mirage.system.files import write_file

    rows = {**known, **{each.region.graph: survey_data(each) for each in found if each.found is not None}}
    write_file(path, json.dumps({"survey": VERSION, "regions": list(rows.values())}, indent=1) + "\n")


def _programs(found: Sequence[Surveyed], folder: Path) -> dict[int, str]:
    """Write the program of every muGraph; by the region's number, the file, or why there is
    none."""
    from taso_mirage.devices.cpu.device import CPU_DEVICE
    from taso_mirage.report.kernel_details import program_source
    from taso_mirage.system.files import write_file

    folder.mkdir(parents=True, exist_ok=True)
    written = {}
    for i, each in enumerate(found):
        if each.found is not None:
            path = folder / f"region{i + 1}.{'cpp' if each.found.device == CPU_DEVICE.name else 'py'}"
            try:
                write_file(path, program_source(each.found))
                written[i] = str(path)
            except TasoMirageError as error:
                written[i] = f"no program: {error}"
            except Exception as error:  # a bug, which must not prevent the report of the results
                written[i] = f"no program, internal error, please report it: {type(error).__name__}: {error}"
    return written


# ---------------------------------------------------------------- text


def _lines(
    model: Path,
    sizes: Mapping[str, int],
    found: Sequence[Surveyed],
    programs: Mapping[int, str],
    show: int | None = None,
) -> Iterator[str]:
    """Lines for the regions, or for the one with the number `show` alone."""
    shown = f" at {', '.join(f'{k}={v}' for k, v in sizes.items())}" if sizes else ""
    places = sum(len(each.region.places) for each in found)
    yield f"{model.name}{shown}: {plural(len(found), 'region')} in {plural(places, 'place')}"
    for i, each in enumerate(found):
        if show not in (None, i + 1):
            continue
        yield ""
        yield from _region(i, each)
        if i in programs:
            yield f"    {programs[i]}"
    if show is None and (total := _total(found)):
        yield ""
        yield total


def _total(found: Sequence[Surveyed]) -> str:
    """One sentence with the time of all places together; empty where nothing was found."""
    done = [(each, each.found) for each in found if each.found is not None]
    if not done:
        return ""
    apart = sum(each.apart * len(each.region.places) for each, _ in done)
    fused = apart - sum(each.gain for each, _ in done)
    return (
        f"In all places {_micro(fused)} instead of {_micro(apart)} with one kernel for each operator, as predicted by an "
        f"analytic model of one {done[0][1].device}; not measured."
    )


def _region(i: int, each: Surveyed) -> Iterator[str]:
    from taso_mirage.report.inspection import quantity

    region = each.region
    yield f"{i + 1}. {' '.join(n.op for n in region.operators)}"
    names = [names[0] for names in region.places[:PLACES]] + ["..."] * (len(region.places) > PLACES)
    yield f"    {plural(len(region.places), 'place')}, from {', '.join(names)}"
    yield (
        f"    {quantity(region.flops, 'flop')}; {quantity(region.bytes, 'B')} moved operator by operator, "
        f"{quantity(region.least, 'B')} at least"
    )
    if each.found is None:
        yield f"    no muGraph: {each.problem}"
        return
    for kernel in each.kernels:
        grid, cluster, loop = (kernel.attr(name) for name in ("grid", "cluster", "loop"))
        clusters = f" in clusters of {cluster}" if cluster > 1 else ""
        blocks = plural(grid[0], "block") if len(grid) == 1 else f"{' x '.join(map(str, grid))} blocks"
        yield f"    kernel of {blocks}{clusters}" + (f", loop of {loop}" if loop > 1 else "")
    evidence, seconds = each.found.evidence, each.found.seconds
    yield (
        f"    predicted {_micro(seconds)} instead of {_micro(each.apart)} ({each.apart / seconds:.1f} times); "
        f"passed {evidence.tests} tests in the field and {len(evidence.measured)} in numbers; {each.took:.1f} s"
    )


def _micro(seconds: float) -> str:
    return f"{seconds * 1e6:.1f} us"


# ---------------------------------------------------------------- page


def _page(model: Path, sizes: Mapping[str, int], found: Sequence[Surveyed], programs: Mapping[int, str]) -> str:
    """One page without scripts or network access."""
    from taso_mirage.report.pages import render_template

    regions = [_region_data(i, each, programs.get(i)) for i, each in enumerate(found)]
    title = next(_lines(model, sizes, found, {}))
    return render_template("kernels.html", title=title, total=_total(found), regions=regions)


def _region_data(i: int, each: Surveyed, program: str | None) -> dict[str, Any]:
    """A region as the page shows it: facts, picture, muGraph."""
    from taso_mirage.report.drawing import draw_graph
    from taso_mirage.rewriting.text import show_graph

    title, *facts = [line.strip() for line in _region(i, each)]
    return {
        "title": title,
        "facts": [*facts, program] if program else facts,
        "drawing": draw_graph(each.region.graph),
        "mugraph": "" if each.found is None else show_graph(each.found.graph),
        "gain": "" if each.found is None else _micro(each.gain),
    }
