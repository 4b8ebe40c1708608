"""Loops over sequences as kernels for the CPU: the steps are a loop inside of a block, whose states
stay in the cache, and the blocks are parts of axes along which a step is the same function."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache
from itertools import permutations
from math import prod

from taso_mirage.devices.device import Device
from taso_mirage.emit.cpp import generate_cpp
from taso_mirage.emit.cpu.prepared import CpuProgram, TemplateInstance
from taso_mirage.errors import TasoMirageError, Unsupported
from taso_mirage.forms.base.form import Form, IsWanted, Users
from taso_mirage.ir.dims import Dim, Symbolic
from taso_mirage.ir.mugraph import Lowering
from taso_mirage.ir.terms import ABSENT, Graph, Node, Tensor, is_part, variable
from taso_mirage.meanings.linear_states import LinearStates, LinearValue
from taso_mirage.meanings.shapes import SHAPES
from taso_mirage.mugraph.found import FoundMuGraph
from taso_mirage.mugraph.free import FreeSizes
from taso_mirage.mugraph.parallel_axes import AxisPlace, parallel_axes
from taso_mirage.mugraph.verification import verified_mugraph
from taso_mirage.operators.interpret import interpret
from taso_mirage.operators.ops import get, term, traits
from taso_mirage.operators.work import size
from taso_mirage.verdicts import Evidence, Failure

OPERATOR = "scan"
DTYPES = "float32", "int64"
"""The types of operands: numbers, and indices such as tokens."""
STEPS = 3
"""The number of steps with which a kernel is tested: the first, one after it, and the last."""
CHUNK, CHUNK_STEPS = 12, 5
"""The number of steps of a chunk, and that with which a kernel of chunks of two steps is tested:
whole chunks, and a part of one."""
BLOCKS, VECTOR = (4, 16, 64), 16
"""The numbers of blocks that are tried at least, and the elements of a vector, which an innermost
axis has in a block at least."""
MOST_STATE = 1 << 22
"""The largest number of bytes of the states of a block: more do not stay in a cache."""
GRID = 3
"""The largest number of axes of a grid."""
Chunk = tuple[int, ...]
"""The attribute `chunk` of a loop (`op_specs/scan.py`)."""
LoopCut = tuple[tuple[AxisPlace, ...], tuple[AxisPlace, ...], int]
"""An axis whose parts are blocks: its place in each operand and in each result, and the number of
parts."""


@dataclass(frozen=True, slots=True)
class Recurrence:
    """A goal that is a loop, all results of which may be read (`base.form.PreparedGoal`)."""

    node: Node
    slack = 1.0
    large, once, joins, by_values = True, True, False, False
    together = "loops"

    @property
    def known(self) -> list[Node]:
        """The operands that are weights."""
        return []

    @property
    def body(self) -> Graph:
        """A step."""
        found: Graph = self.node.attr("body")
        return found

    @property
    def states(self) -> int:
        """The number of states."""
        return int(self.node.attr("states"))

    @property
    def operands(self) -> tuple[Node, ...]:
        """The operands, each once: several states may have one first value."""
        return tuple(dict.fromkeys(self.node.args))

    @property
    def sequences(self) -> tuple[Node, ...]:
        """The operands of which each step reads an element."""
        return self.node.args[self.states : self.states + self.node.attr("sequences")]

    @property
    def types(self) -> tuple[Tensor, ...]:
        """The types of the results."""
        return self.node.type if isinstance(self.node.type, tuple) else (self.node.tensor,)

    def with_steps(self, count: int) -> Recurrence:
        """This loop over sequences of so many elements."""
        leaves = {}
        for i, arg in enumerate(self.operands):
            shape = (count, *arg.shape[1:]) if arg in self.sequences else arg.shape
            leaves[arg] = variable(f"x{i}", Tensor(arg.dtype, shape))
        return Recurrence(term(OPERATOR, *[leaves[a] for a in self.node.args], **dict(self.node.attrs)))

    def results(self, whole: Node) -> tuple[Node, ...]:
        """The results of a term like this one."""
        several = isinstance(whole.type, tuple)
        return tuple(term("item", whole, index=i) for i in range(len(self.types))) if several else (whole,)

    def kernel(self, cuts: Sequence[LoopCut], chunk: Chunk = ()) -> Node:
        """The kernel with these blocks: in each, the loop over its part of the operands, with
        `chunk` by chunks of steps."""
        places = [[cut[0][self.node.args.index(x)] for cut in cuts] for x in self.operands]
        tiles = self.tiles(cuts)
        own = Graph(tuple(dict.fromkeys(tiles)), self.results(self.over(tiles, chunk)))
        omap = tuple(tuple(_number(cut[1][o]) for cut in cuts) for o in range(len(self.types)))
        imap = tuple(tuple(map(_number, axes)) for axes in places)
        grid = tuple(cut[2] for cut in cuts) or (1,)
        fmap = (-1,) * len(places)
        if not cuts:
            imap, omap = ((-1,),) * len(places), ((-1,),) * len(self.types)
        return term("kernel", *self.operands, body=own, grid=grid, loop=1, imap=imap, fmap=fmap, omap=omap)

    def tiles(self, cuts: Sequence[LoopCut]) -> list[Node]:
        """The part of each of the loop's operands in a block."""
        made: dict[Node, Node] = {}
        for i, x in enumerate(self.node.args):
            shape = _part(x, [cut[0][i] for cut in cuts], cuts)
            made.setdefault(x, variable(f"t{len(made)}", Tensor(x.dtype, shape)))
        return [made[x] for x in self.node.args]

    def over(self, tiles: Sequence[Node], chunk: Chunk = ()) -> Node:
        """This loop over operands of other sizes."""
        end = self.states + self.node.attr("sequences")
        leaves = {
            leaf: variable(f"x{i}", Tensor(t.dtype, t.shape[1:] if self.states <= i < end else t.shape))
            for i, (leaf, t) in enumerate(zip(self.body.inputs, tiles, strict=True))
        }
        step = Graph(tuple(leaves.values()), _at_sizes(self.body, leaves))
        return term(OPERATOR, *tiles, **{**dict(self.node.attrs), "body": step, "chunk": chunk})

    def axes(self) -> list[tuple[tuple[AxisPlace, ...], tuple[AxisPlace, ...], Dim]]:
        """The axes whose parts are apart, each with its places in operands and results, and its
        size. An operand that is several has the axis at one place."""
        end, found = self.states + self.node.attr("sequences"), []
        for inputs, outputs in parallel_axes(self.body, self.states):
            ins = tuple(_moved(p, self.states <= i < end) for i, p in enumerate(inputs))
            if len({*zip(self.node.args, ins, strict=True)}) > len(self.operands):
                continue
            outs = tuple(_moved(p, i >= self.states) for i, p in enumerate(outputs))
            found.append((ins, outs, self.node.args[0].shape[ins[0] or 0]))
        return found

    def cuts(self) -> Iterator[tuple[LoopCut, ...]]:
        """Several ways to cut the axes into blocks: the outer axes first, each as far as there are
        fewer blocks than wanted."""
        known: set[tuple[LoopCut, ...]] = set()
        for wanted in BLOCKS:
            made: list[LoopCut] = []
            for ins, outs, whole in self.axes()[:GRID]:
                n = int(whole)
                before = prod(cut[2] for cut in made)
                inner = (ins[0] or 0) == len(self.node.args[0].shape) - 1
                parts = [k for k in range(1, n + 1) if n % k == 0 and (not inner or n // k >= min(n, VECTOR))]
                enough = [k for k in parts if k * before >= wanted] or parts
                if before < wanted and enough[0 if len(enough) < len(parts) else -1] > 1:
                    made.append((ins, outs, enough[0] if enough[0] * before >= wanted else enough[-1]))
            if tuple(made) not in known:
                known.add(tuple(made))
                yield tuple(made)

    @property
    def chunk(self) -> Chunk:
        """The chunks in which the steps of a loop whose state is a matrix can be computed, of CHUNK
        steps; none if it has no such state, or reads it otherwise than in products."""
        shape = self.node.args[0].shape
        axes = [axis for axis, n in enumerate(shape) if n != 1]
        for keys, values in permutations(axes, 2) if self.states == 1 else ():
            linear = LinearStates(SHAPES, self.node.args[0].tensor, keys, values)
            leaves = [leaf.tensor for leaf in self.body.inputs[1:]]
            env = dict(zip(self.body.inputs, (linear.first, *leaves), strict=True))
            with suppress(TasoMirageError, IndexError):
                found = interpret(self.body.outputs, linear, env)
                new, *_ = [found[o] if i == 0 else linear.plain(found[o]) for i, o in enumerate(self.body.outputs)]
                if isinstance(new, LinearValue) and new.state:
                    return (CHUNK, keys, values)
        return ()

    def chunk_cuts(self) -> tuple[LoopCut, ...] | None:
        """The blocks of a loop by chunks, which have one state each, with all of its values, or
        half of them where there are few blocks; None where a step mixes other axes."""
        if not self.chunk:
            return None
        _, keys, values = self.chunk
        axes = {ins[0]: (ins, outs, int(whole)) for ins, outs, whole in self.axes() if ins[0] is not None}
        made = [cut for axis, cut in axes.items() if axis != values and cut[2] > 1]
        beside = [i for i, n in enumerate(self.node.args[0].shape) if n != 1 and i not in (*axes, keys, values)]
        if prod(cut[2] for cut in made) < BLOCKS[0] and values in axes and axes[values][2] % (2 * VECTOR) == 0:
            made.append((*axes[values][:2], 2))
        return None if beside or len(made) > GRID else tuple(made)

    def mugraphs(self, graph: Graph, device: Device) -> list[FoundMuGraph]:
        """The verified muGraphs of `graph`, from which this goal was read; those with the most
        blocks first."""
        found, several = list[FoundMuGraph](), self.chunk_cuts()
        forms = [] if several is None else [(several, self.chunk)]
        for cuts, own in [*forms, *((cuts, ()) for cuts in self.cuts())]:
            whole = self.results(self.kernel(cuts, own))
            wanted = tuple(whole[_place(o)] for o in graph.outputs)
            made = Graph(graph.inputs, wanted)
            blocks = prod(cut[2] for cut in cuts)
            states = sum(size(x.tensor) for x in self.node.args[: self.states]) // blocks
            if states > MOST_STATE or not _has_code(made):
                continue
            evidence = _evidence(self.with_steps(CHUNK_STEPS if own else STEPS), cuts, own and (2, *own[1:]))
            if isinstance(evidence, Evidence):
                found.append(FoundMuGraph(made, graph, 1.0 / blocks, device.name, evidence))
        return sorted(found, key=lambda each: each.seconds)

    def saved(self, device: Device) -> float:
        """Seconds that the kernel may save: the starts of the operators of all steps."""
        count = self.node.args[self.states].shape[0]
        steps = count if isinstance(count, int) else 1
        return steps * sum(bool(n.args) for n in self.body) * device.launch


def _number(place: AxisPlace) -> int:
    return -1 if place is None else place


def _moved(place: AxisPlace, sequence: bool) -> AxisPlace:
    """The place of an element's axis in a sequence."""
    return place if place is None else place + sequence


def _part(x: Node, places: Sequence[AxisPlace], cuts: Sequence[LoopCut]) -> tuple[int, ...]:
    shape = [int(n) for n in x.shape]
    for place, (_, _, count) in zip(places, cuts, strict=True):
        if place is not None:
            shape[place] //= count
    return tuple(shape)


def _at_sizes(body: Graph, leaves: Mapping[Node, Node]) -> tuple[Node, ...]:
    """The outputs of a step over leaves of other sizes."""
    done: dict[Node, Node] = {ABSENT: ABSENT, **leaves}
    for node in body:
        if node in done:
            continue
        args = [done[a] for a in node.args]
        attrs, resize = dict(node.attrs), traits(node).resize
        if resize is not None and node.args:
            old, new = ([a.shape for a in some] for some in (node.args, args))
            attrs |= resize(attrs, old, new, {})
        done[node] = get(node.op).term(*args, **attrs) if node.args else node
    return tuple(done[o] for o in body.outputs)


def _place(output: Node) -> int:
    return int(output.attr("index")) if is_part(output) else 0


@lru_cache(maxsize=256)
def _has_code(graph: Graph) -> bool:
    try:
        generate_cpp(graph)
    except TasoMirageError:
        return False
    return True


@lru_cache(maxsize=256)
def _evidence(small: Recurrence, cuts: tuple[LoopCut, ...], chunk: Chunk) -> Evidence | Failure:
    leaves = small.operands
    mine = Graph(leaves, small.results(small.kernel(cuts, chunk)))
    return verified_mugraph(mine, Graph(leaves, small.results(small.node)), numbers=False)


def recurrence(goal: Graph) -> Recurrence | None:
    """Read a goal that is a loop over inputs of float32 and of fixed sizes; None for others."""
    node = _loop(goal)
    if node is None:
        return None
    types = [a.tensor for a in node.args]
    if any(t.dtype not in DTYPES or not all(isinstance(n, int) for n in t.shape or ()) for t in types):
        return None
    found = Recurrence(node)
    whole = (*node.args[: found.states], *node.args[found.states + len(found.sequences) :])
    if int(found.sequences[0].shape[0]) < 1 or not set(whole).isdisjoint(found.sequences):
        return None
    return found


def _loop(goal: Graph) -> Node | None:
    """The only term of a goal, if it is a loop over its inputs."""
    node, *others = {o.args[0] if is_part(o) else o for o in goal.outputs}
    if others or traits(node).lowering is not Lowering.STEPS or not set(node.args) <= set(goal.inputs):
        return None
    return node


def _follows(goal: Graph, named: Graph, free: FreeSizes) -> bool:
    """Whether the blocks of a goal's kernels run every size of `named`: each of its free sizes, but
    for the number of steps, is that of an axis whose parts are apart, and a block has one element
    of it, for which the step of both is the same."""
    mine, node = recurrence(goal), _loop(named)
    if mine is None or node is None:
        return False
    every, found = Recurrence(node), False
    axes = {n: (ins, outs) for ins, outs, n in every.axes() if isinstance(n, Symbolic)}
    if not axes.keys() >= {n for leaf in every.body.inputs for n in leaf.shape if isinstance(n, Symbolic)}:
        return False
    several = mine.chunk_cuts()
    for cuts in (*mine.cuts(), *([] if several is None else [several])):
        tiles = mine.tiles(cuts)
        units = [(ins, outs) for ins, outs, _ in cuts if tiles[0].shape[ins[0] or 0] == 1]
        if not all(places in units for places in axes.values()):
            continue  # a muGraph of this grid has no free sizes
        if mine.over(tiles) != every.over(tiles):
            return False
        found = True
    return found


def _members(node: Node, users: Users, wanted: IsWanted, sizes: Mapping[str, int]) -> list[Node]:
    return [node, *users(node)] if traits(node).lowering is Lowering.STEPS else []


def _no_class(node: Node) -> TemplateInstance:
    raise Unsupported("a loop outside of a kernel's blocks, in C++")


FORM = Form(CpuProgram(OPERATOR, _no_class), recurrence, _members, follows=_follows)
