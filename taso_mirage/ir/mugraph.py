"""The form of a kernel's body: tiles, and the loop phase of every term in it (Mirage, OSDI'25,
section 3: valid block graphs)."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import Enum, IntEnum
from functools import lru_cache

from taso_mirage.errors import IllTyped, Undecidable
from taso_mirage.ir.dims import Dim, Shape, Symbolic, bind, evaluate, parse_dim, symbol, symbols
from taso_mirage.ir.terms import ABSENT, Graph, Node, Tensor, topological

_Ints = tuple[int, ...]
_Maps = tuple[_Ints, ...]


class Lowering(Enum):
    """Facts about an operator that code generators need in addition to its definition."""

    KERNEL = "the blocks of a grid; in a body, the thread level"
    ACCUMULATE = "what a value is over all iterations"
    RUNNING = "the largest of the iterations so far"
    COMBINE = "what a value is over all blocks of a cluster"
    STEPS = "a loop over steps, from each of which states go on to the next"
    CONTRACT = "a contraction and nothing else, which tensor cores may do"
    NARROW = "what is handed over in the model's own float type"
    RESHAPE = "a reshape and nothing else"
    TRANSPOSE = "a transpose and nothing else"
    SLICE = "parts of axes, in steps"
    CONCAT = "tensors side by side"
    PAD = "a tensor with more elements around it"
    GATHER = "rows that integers choose"
    PICK = "elements of an axis that integers choose"
    EXPAND = "elements that are repeated"
    MULTIPLY = "the product of two operands, element by element"
    SUBTRACT = "the first operand less the second, element by element"
    SUM = "a sum over axes"
    MAXIMUM = "the larger of its operands"
    SCALE = "numbers less their zeros, times their scales"
    UNPACK = "bytes as the numbers of a few bits that they hold"
    WHOLE = "numbers of 8 bits as integers, of unsigned ones less 128"


SIGN = 128
"""The difference between an unsigned number of 8 bits and the signed one of `Lowering.WHOLE`."""


class LoopPhase(IntEnum):
    """The phase, relative to the for-loop, in which a term of a body is known."""

    INVARIANT = 0
    """The term depends on no operand that the loop cuts (Mirage wants every path through the loop;
    this is wider)."""
    LOOP = 1
    """The term has another value in every iteration."""
    AFTER = 2
    """The term depends on an accumulator."""


@dataclass(frozen=True, slots=True)
class Batch:
    """A muGraph of one sample that is run once for each sample of a run. The first `dims` dims, of
    size 1 in the muGraph, are free in the inputs given by `inputs` and in every result; all samples
    share the other inputs."""

    dims: int
    inputs: tuple[bool, ...]

    def __post_init__(self) -> None:
        """Raises ValueError for the fields of a damaged record."""
        if type(self.dims) is not int or not all(type(each) is bool for each in self.inputs):
            raise ValueError(f"no batch: {str(self.dims)[:40]} dims of {str(self.inputs)[:40]}")


def kernels(outputs: Iterable[Node]) -> list[Node]:
    """The kernels of a muGraph, in the order of their runs."""
    return [node for node in topological(outputs) if node.op == "kernel"]


def loop_phases(body: Graph, fmap: Sequence[int], loop: Dim = 2) -> dict[Node, LoopPhase]:
    """The loop phase of every term of a body, operands first.

    Raises IllTyped where a term mixes the loop with terms after it.

    In a loop of one iteration an accumulator may be of an invariant.
    """
    found = {x: LoopPhase.LOOP if axis >= 0 else LoopPhase.INVARIANT for x, axis in zip(body.inputs, fmap, strict=True)}
    for node in body:
        if node not in found:
            found[node] = _phase(node, {found[arg] for arg in node.args}, loop)
    for i, output in enumerate(body.outputs):
        if found[output] is LoopPhase.LOOP:
            raise IllTyped(f"output {i}, {output.op}, differs between iterations; accumulate it")
    return found


def _phase(node: Node, below: set[LoopPhase], loop: Dim) -> LoopPhase:
    if node.op in ("input", "weight"):
        raise IllTyped(f"the body reads the {node.op} {node.attr('name')}, which is no operand of the kernel")
    if {LoopPhase.LOOP, LoopPhase.AFTER} <= below:
        raise IllTyped(f"{node.op} takes a value of one iteration together with one that is known after the loop")
    if node.op == "combine" and LoopPhase.LOOP in below:
        raise IllTyped("combine of a value that differs between iterations; accumulate it first")
    if node.op not in ("accumulate", "running_max"):
        return max(below, default=LoopPhase.INVARIANT)
    if LoopPhase.AFTER in below:
        raise IllTyped(f"{node.op} of a value that is known after the loop only")
    if loop != 1 and LoopPhase.LOOP not in below:
        raise IllTyped(f"{node.op} of a value that is the same in each of the {loop} iterations")
    if node.op == "running_max":
        return max(below)
    if node.attr("over") == "rescaled" and node.args[1].op != "running_max":
        raise IllTyped(f"accumulate is rescaled by {node.args[1].op}; it must be a running_max")
    return LoopPhase.AFTER


def tile(type: Tensor, grid: _Ints, imap: _Ints, fmap: int = -1, loop: int = 1) -> Tensor:
    """The tile of an operand of this type that one block sees in one iteration.

    Raises IllTyped where parts are not equal.
    """
    shape = _shape(type)
    counts = _parts(len(shape), grid, imap, fmap, loop)
    for axis, (n, count) in enumerate(zip(shape, counts, strict=True)):
        if isinstance(n, int) and isinstance(count, int) and n % count:
            raise IllTyped(f"dimension {axis} of {type} is {n}, which {count} equal parts do not divide")
    return Tensor(type.dtype, tuple(n // count for n, count in zip(shape, counts, strict=True)))


_PART = re.compile(r"(\w+?)_by_(\d+)(?:_\d+)?")
KNOWN = "w"
"""The beginning of the name of a part of a size that is a number."""
_SIGNS = ((" + ", "_plus_"), (" - ", "_minus_"), ("*", "_times_"))
"""The signs of a polynomial, and their words in the name of a part."""


def tile_part(whole: Dim, most: int, number: int = 1) -> Dim:
    """The size of a part of a free size, at most `most`: the last part is the rest.

    `number` distinguishes two labels that a kernel cuts into equal tiles, because one may be at its
    end where the other is not. Raises Undecidable for the part of a quotient, which has no name.
    """
    made = symbol(f"{_worded(whole)}_by_{most}{f'_{number}' if number > 1 else ''}")
    if part_of(made) != (whole, most):
        raise Undecidable(f"a part of {whole} has no name")
    return made


@lru_cache(maxsize=4096)
def part_of(dim: Dim) -> tuple[Dim, int] | None:
    """The dim of which `dim` is a part, and the part's largest size; None unless `tile_part` made
    `dim`."""
    found = _PART.fullmatch(str(dim)) if isinstance(dim, Symbolic) else None
    if found is None:
        return None
    text = found[1].removeprefix(KNOWN) if found[1].removeprefix(KNOWN).isdigit() else found[1]
    for sign, word in _SIGNS:
        text = text.replace(word, sign)
    return parse_dim(text), int(found[2])


def _worded(dim: Dim) -> str:
    """A polynomial as a name: positive products first, each with its number behind the sizes."""
    if isinstance(dim, int):
        return f"{KNOWN}{dim}"
    terms = sorted(dim.terms, key=lambda term: (term[1] < 0, not term[0])) if isinstance(dim, Symbolic) else ()
    text = ""
    for monomial, c in terms:
        factors = [str(atom) for atom, power in monomial for _ in range(power)]
        text += " + " if c > 0 < len(text) else " - " if c < 0 else ""
        text += "*".join([*factors, *([str(abs(c))] if abs(c) != 1 or not factors else [])])
    for sign, word in _SIGNS:
        text = text.replace(sign, word)
    return text


def tile_count(whole: Dim, tile: Dim) -> Dim:
    """How many tiles of a size cover a dim."""
    found = part_of(tile)
    return whole // tile if found is None else (whole + found[1] - 1) // found[1]


def tile_stride(whole: Dim, tile: Dim, count: Dim) -> Dim:
    """The distance between the beginnings of the equal parts of a dim, or of tiles of which the
    last is the rest."""
    found = part_of(tile)
    return whole // count if found is None else found[1]


def largest_size(dim: Dim) -> Dim:
    """The largest size of a dim, its parts at theirs."""
    return bind(dim, {name: found[1] for name in symbols(dim) if (found := part_of(symbol(name)))})


def usual_size(dim: Dim) -> int:
    """A size that replaces one known only at run time, for the choice of code."""
    largest = largest_size(dim)
    return evaluate(largest, dict.fromkeys(symbols(largest), USUAL))


def parts_in(body: Graph) -> dict[str, tuple[Dim, int]]:
    """The names of a body that are parts, each with its whole and its largest size."""
    dims = {dim for x in body.inputs for dim in x.shape}
    return {str(dim): found for dim in dims if (found := part_of(dim)) is not None}


def product_factor(dim: Dim) -> str:
    """A size as code writes it in a product."""
    return f"({dim})" if isinstance(dim, Symbolic) and len(dim.terms) > 1 else str(dim)


def size_names(shapes: Iterable[Shape]) -> list[str]:
    """The names of some dims in order, as the arguments of a program."""
    return list(dict.fromkeys(str(dim) for shape in shapes for dim in shape if str(dim) in symbols(dim)))


def possibly_empty(graph: Graph) -> list[str]:
    """The named sizes that may be 0 although nothing says that the results are empty then: kernels
    that compute have no operand without elements, as a cache of length 0 is joined with a new
    element."""
    names = size_names([x.shape for x in graph.inputs])
    run = kernels(graph.outputs)
    copies = {node for node in run if node.attr("body").outputs == node.attr("body").inputs}
    above = [node for node in (*run, *topological(graph.outputs, stop=run)) if node not in copies]
    read = [x for node in above for x in node.args if x is not ABSENT and x not in copies]
    dims = {dim for x in (*read, *graph.outputs) if isinstance(x.type, Tensor) for dim in x.shape}
    if not all(symbols(dim) <= {*names} for dim in dims):
        return []
    return [name for name in names if all(evaluate(dim, {**dict.fromkeys(names, 1), name: 0}) > 0 for dim in dims)]


def has_free_sizes(graph: Graph) -> bool:
    """Whether a muGraph has sizes that are known only at run time."""
    return any(isinstance(dim, Symbolic) for x in graph.inputs for dim in x.shape)


def is_free_kernel(body: Graph, grid: Shape, loop: Dim) -> bool:
    """Whether the number of a kernel's blocks, iterations or tiles is known only at run time."""
    dims = [*grid, loop, *[n for x in body.inputs for n in x.shape]]
    return not all(isinstance(n, int) for n in dims)


USUAL = 64
Overlap = tuple[int, int]
"""The size of a dim, and that of the tiles that cover it, larger than equal parts: the last one
ends where the dim ends, and its overlap with the one before is computed twice."""


def overlaps(shapes: Sequence[Shape], body: Graph, grid: Shape, imap: _Maps) -> tuple[Overlap | None, ...]:
    """For each grid dim how the tiles that it cuts overlap, None where they are equal parts.

    Nothing else cuts such a dim.
    """
    found: list[Overlap | None] = [None] * len(grid)
    for shape, leaf, axes in zip(shapes, body.inputs, imap, strict=True):
        tiles = _shape(leaf.tensor)
        for g, axis in enumerate(axes):
            if axis >= 0 and axes.count(axis) == 1:
                found[g] = _overlap(shape[axis], tiles[axis], grid[g]) or found[g]
    return tuple(found)


def _overlap(size: Dim, tile: Dim, count: Dim) -> Overlap | None:
    if not isinstance(size, int) or not isinstance(tile, int) or not isinstance(count, int):
        return None
    return (size, tile) if (count - 1) * tile < size < count * tile else None


LARGEST_CLUSTER = 16
"""Blocks of a cluster: every GPU that has clusters has those of 8, an H100 also these."""


def check(
    operands: Sequence[Tensor], body: Graph, grid: Shape, loop: Dim, imap: _Maps, fmap: _Ints, omap: _Maps, cluster: int
) -> None:
    """Raise IllTyped, with the operand, the dimension and both values, unless these make a
    kernel."""
    if len(grid) > 3 or any(isinstance(n, int) and n < 1 for n in (*grid, loop)):
        raise IllTyped(
            f"grid {grid} and loop {loop}; up to three block counts, each at least 1, and a range of at least 1"
        )
    if cluster != 1 and (cluster != (*grid, 1)[len(grid) - 1] or not 1 <= cluster <= LARGEST_CLUSTER):
        raise IllTyped(
            f"a cluster of {cluster} blocks in the grid {grid}; it has all of the last grid dim, at most {LARGEST_CLUSTER}"
        )
    for name, given, wanted in (
        ("operands", len(operands), len(body.inputs)),
        ("imap", len(imap), len(body.inputs)),
        ("fmap", len(fmap), len(body.inputs)),
        ("omap", len(omap), len(body.outputs)),
    ):
        if given != wanted:
            raise IllTyped(f"{name}: {given}, but the body has {wanted}")
    if not body.outputs or len(set(body.inputs)) < len(body.inputs):
        raise IllTyped("a body needs an output, and different leaves for its operands")
    for i, operand in enumerate(operands):
        _check_operand(i, operand, body.inputs[i], grid, imap[i], fmap[i], loop)
    if loop != 1 and max(fmap, default=-1) < 0:
        raise IllTyped(f"a loop of {loop} iterations that cuts no operand")
    loop_phases(body, fmap, loop)
    overlapping = overlaps([_shape(x) for x in operands], body, grid, imap)
    for i, operand in enumerate(operands):
        _check_overlaps(f"operand {i}", _shape(operand), _shape(body.inputs[i].tensor), overlapping, imap[i])
    if cluster != 1 and overlapping[-1] is not None:
        raise IllTyped(f"grid dim {len(grid) - 1} is a cluster, and cuts into tiles that overlap")
    for o, output in enumerate(body.outputs):
        _check_output(o, output, grid, omap[o])
        _check_overlaps(f"output {o}", None, _shape(output.tensor), overlapping, omap[o])


def _check_overlaps(
    who: str, whole: Shape | None, tile: Shape, overlapping: Sequence[Overlap | None], cuts: _Ints
) -> None:
    """Test that everything that a grid dim cuts has the same tiles, if they overlap.

    The size of an output follows.
    """
    for g, axis in enumerate(cuts):
        each = overlapping[g]
        if each is None or axis < 0:
            continue
        if cuts.count(axis) > 1 or tile[axis] != each[1] or (whole is not None and whole[axis] != each[0]):
            have = tile[axis] if whole is None else f"{whole[axis]} in tiles of {tile[axis]}"
            raise IllTyped(
                f"{who}: dimension {axis} is {have}, but grid dim {g} cuts {each[0]} into overlapping tiles of {each[1]}"
            )


def _check_operand(i: int, operand: Tensor, leaf: Node, grid: Shape, imap: _Ints, fmap: int, loop: Dim) -> None:
    who = f"operand {i} ({leaf.attr('name') if leaf.op == 'input' else leaf.op})"
    if leaf.op != "input":
        raise IllTyped(f"{who}: the body's operands are inputs")
    have, shape = _shape(leaf.tensor), _shape(operand)
    if leaf.dtype != operand.dtype or len(have) != len(shape):
        raise IllTyped(f"{who}: the tile is {leaf.tensor}, the operand {operand}")
    try:
        counts = _parts(len(shape), grid, imap, fmap, loop)
    except IllTyped as error:
        raise IllTyped(f"{who}: {error}") from None
    for axis, (n, count, m) in enumerate(zip(shape, counts, have, strict=True)):
        alone = imap.count(axis) == 1 and (fmap != axis or loop == 1)
        if m * count != n and not _covers(n, m, count) and not (alone and _overlap(n, m, count)):
            raise IllTyped(f"{who}: dimension {axis} is {n}, not {count} parts of {m}")


def _covers(n: Dim, tile: Dim, count: Dim) -> bool:
    found = part_of(tile)
    return found is not None and found[0] == n and tile_count(n, tile) == count


def _check_output(o: int, output: Node, grid: Shape, omap: _Ints) -> None:
    who = f"output {o} ({output.op})"
    if not isinstance(output.type, Tensor):
        raise IllTyped(f"{who}: {output.type} is not one tensor")
    if len(omap) != len(grid):
        raise IllTyped(f"{who}: omap {omap} for the grid {grid}")
    for g, axis in enumerate(omap):
        if not -1 <= axis < output.tensor.rank:
            raise IllTyped(f"{who}: the blocks of grid dim {g} stand along dimension {axis} of {output.tensor}")


def _parts(rank: int, grid: Shape, imap: _Ints, fmap: int, loop: Dim) -> list[Dim]:
    """The number of parts into which the grid and the loop cut each dim."""
    if len(imap) != len(grid):
        raise IllTyped(f"imap {imap} for the grid {grid}")
    counts: list[Dim] = [1] * rank
    for count, axis, who in (
        *((n, a, f"grid dim {g}") for g, (n, a) in enumerate(zip(grid, imap, strict=True))),
        (loop, fmap, "the loop"),
    ):
        if not -1 <= axis < rank:
            raise IllTyped(f"{who} cuts dimension {axis} of a tensor of rank {rank}")
        if axis >= 0:
            counts[axis] = counts[axis] * count
    return counts


def _shape(type: Tensor) -> Shape:
    if type.shape is None:
        raise IllTyped(f"an operand of type {type} has no known rank")
    return type.shape


def stitched(type: Tensor, grid: Shape, omap: _Ints, overlapping: Sequence[Overlap | None]) -> Tensor:
    """The type of a kernel's output whose tile has this type."""
    shape: list[Dim] = list(_shape(type))
    for count, axis, overlap in zip(grid, omap, overlapping, strict=True):
        if axis >= 0:
            found = overlap or part_of(shape[axis])
            shape[axis] = shape[axis] * count if found is None else found[0]
    return Tensor(type.dtype, tuple(shape))
