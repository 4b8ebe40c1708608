"""Passes before and after the search: laws that always help.

Interning replaces CSE and DCE.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from itertools import count
from typing import Any

import numpy as np

from taso_mirage.errors import IllTyped, TasoMirageError, Unsupported
from taso_mirage.ir.model import Weight
from taso_mirage.ir.terms import (
    ABSENT,
    Graph,
    Node,
    Tensor,
    is_computed,
    topological,
    users,
    variable,
    weight,
    with_args,
)
from taso_mirage.measure.target import CPU, Target
from taso_mirage.operators.expressions import is_weight
from taso_mirage.operators.ops import get, traits
from taso_mirage.operators.work import Work, work
from taso_mirage.rewriting.derived_traits import multiplies, selects
from taso_mirage.rewriting.equation import Equation, Match
from taso_mirage.rewriting.folding import fold_constants
from taso_mirage.rewriting.index import Application, Keep, Rules
from taso_mirage.search.steps import FOLDING, RewriteStep
from taso_mirage.search.weights import dtype_holds, moderate

SWEEPS = 8
LARGE = 4
FASTER = 1 - 1e-6
"""The largest roofline time of an application that leaves the number of terms equal, relative to
the time before it."""
FEW, KERNEL = 1 << 16, 1 << 25
"""The largest numbers of operations of one term on weights whose result is tested before a rewrite
is taken: for matrices in half precision, of which there are many large ones, and for tensors with
more axes, such as kernels of convolutions, and for other dtypes. A batch norm on a 3 by 3 kernel
for 1,024 and 1,024 channels has half of the second number."""


Signature = tuple[str, tuple[Any, ...], Any]


def signature(node: Node) -> Signature:
    """The key of a term's cost: operator, attributes, and the types of the operands, weights
    distinguished."""
    return node.op, tuple((a.type, is_weight(a)) for a in node.args), node.attrs


@dataclass
class Context:
    """The constraints on every rewrite of one model, with memos over interned terms.

    `others` is the same at the other sets of sizes, each with how much it counts against this one;
    `weights` are those whose values are known, and where it is `hopeful` the values of all suit.
    `slower` says, where costs are measured, whether the second of two lists of terms takes longer
    than the first: a roofline knows nothing of how well the runtime's own operators are written.
    Once it is `over`, passes end where they are. `holding` says of terms over weights whether
    their dtype holds their values, which takes long for large ones.
    """

    opsets: Mapping[str, int]
    sizes: Mapping[str, int]
    available: Callable[[Node], bool] = lambda node: True
    target: Target = CPU
    others: Sequence[tuple[Context, float]] = ()
    weights: Mapping[str, Weight] = field(default_factory=dict)
    hopeful: bool = False
    slower: Callable[[Sequence[Node], Sequence[Node]], bool] | None = None
    over: Callable[[], bool] = lambda: False
    holding: dict[tuple[Node, tuple[Weight | None, ...]], bool] = field(default_factory=dict)
    _work: dict[Signature, Work | None] = field(default_factory=dict)
    _legal: dict[Node, bool] = field(default_factory=dict)
    _helpful: dict[Rules, Rules] = field(default_factory=dict, init=False)

    def helpful(self, rules: Rules) -> Rules:
        """The rules without those whose applications never pay, even if no matched term is used
        elsewhere."""
        if rules not in self._helpful:
            single = (e for e in rules.equations if len(e.roots) == 1)
            hopeful = Context(self.opsets, self.sizes, self.available, self.target, self.others, hopeful=True)
            proved = rules.keep or (lambda application: True)
            self._helpful[rules] = Rules(single, lambda a: _smaller(a, _Once(), hopeful) and proved(a))
        return self._helpful[rules]

    def work(self, node: Node) -> Work | None:
        """The work of one term; None where it cannot be counted."""
        key = signature(node)
        if key not in self._work:
            try:
                self._work[key] = work(node, self.sizes)
            except (TasoMirageError, LookupError, TypeError, ValueError):
                self._work[key] = None
        return self._work[key]

    def spoils_a_weight(self, node: Node) -> bool:
        """Whether a term combines weights of floats, and is large or shown to be off: scales
        multiplied ahead may overflow or underflow. Beyond half precision a large term over numbers
        of a usual size is neither, and one over weights of unknown values is not looked at."""
        if not isinstance(node.type, Tensor) or not is_computed(node.type.dtype):
            return False
        counted = self.work(node) if is_weight(node) and not selects(node.op) else None
        if counted is None or counted.flops == 0:
            return False
        half = node.type.dtype in ("float16", "bfloat16")
        most = KERNEL if node.tensor.rank > 2 or not half else FEW
        if self.hopeful or half:
            return counted.flops > most if self.hopeful else counted.flops > most or not self._holds(node)
        leaves = [n for n in topological([node]) if n.op in ("weight", "constant")]
        if any(n.op == "weight" and n.attr("name") not in self.weights for n in leaves):
            return False
        if counted.flops > FEW and all(self._asked(n, moderate) for n in leaves):
            return False
        return counted.flops > most or not self._holds(node)

    def _holds(self, node: Node) -> bool:
        return self._asked(node, dtype_holds)

    def _asked(self, node: Node, question: Callable[[Node, Mapping[str, Weight]], bool]) -> bool:
        """The answer to a question about a term over weights, which is asked once for each."""
        key = node, tuple([self.weights.get(n.attr("name")) for n in topological([node]) if n.op == "weight"])
        if key not in self.holding:
            self.holding[key] = question(node, self.weights)
        return self.holding[key]

    def estimate(self, node: Node) -> float:
        """Seconds of one term on a roofline: a launch, and the maximum of the times to compute and
        to move data.

        The seconds at other sets of sizes are added.
        """
        counted, reached = self.work(node), self.target.device.operator
        seconds = reached.launch + sum(weight * other.estimate(node) for other, weight in self.others)
        if counted is None:
            return seconds
        return seconds + max(counted.flops / reached.flops, counted.bytes / reached.bandwidth)

    def legal(self, node: Node) -> bool:
        """Whether the term can be written at the model's opsets, and the runtime has an
        implementation of it."""
        if node.op in ("input", "weight", "constant", "extents", "opaque", "item", "absent"):
            return True
        if node not in self._legal:
            op = get(node.op)
            if self.spoils_a_weight(node):
                self._legal[node] = False
                return False
            try:
                call = op.to_onnx(node, self.opsets.get(op.domain, 1))
                self._legal[node] = is_weight(node) or (  # weights are computed in advance by this package
                    not _is_narrowed(node, call.attrs) and self.available(node)
                )
            except (Unsupported, IllTyped):
                self._legal[node] = False
        return self._legal[node]


def _is_narrowed(node: Node, attrs: Mapping[str, Any]) -> bool:
    """Whether ONNX would round an attribute of an operator in double precision: it stores numbers
    in single precision."""
    if not any(isinstance(each.type, Tensor) and each.type.dtype == "float64" for each in (node, *node.args)):
        return False
    numbers = [n for each in attrs.values() for n in (each if isinstance(each, tuple) else (each,))]
    with np.errstate(over="ignore"):
        return any(isinstance(n, float) and float(np.float32(n)) != n for n in numbers)


def new_terms(results: Sequence[Node], known: Mapping[str, Node]) -> list[Node]:
    """The terms that an application builds above its match."""
    return [n for n in topological(results, stop=set(known.values())) if n.args]


def pass_order(equations: Sequence[Equation], keep: Keep | None = None) -> list[Rules]:
    """The order in which laws are tried as passes: standard operators first; then into the
    runtime's own, large patterns before small ones, because a small fusion would hide a large one;
    and laws that would hide one as well (`last`). `keep` says which applications are proved."""
    helpful = [e for e in equations if e.last or can_shrink(e)]
    standard = [e for e in helpful if not (runtime_specific(e) or e.last)]
    large = [e for e in helpful if len(e.lhs_terms) >= LARGE]
    return [Rules(standard, keep), Rules([*standard, *large], keep), Rules(helpful, keep)]


def joint(rules: Rules) -> Rules:
    """The equations with several outputs into the runtime's own operators: they only help.

    Others, such as parallel products as one, are left to the search, because they hide larger
    fusions.
    """
    return Rules((e for e in rules.equations if len(e.roots) > 1 and runtime_specific(e)), rules.keep)


def for_search(equations: Sequence[Equation], target: Target = CPU) -> tuple[Equation, ...]:
    """The rules of the search: all except the small fusions into the runtime's own operators.

    Laws that only change a layout save no term, so that no pass takes them: the search has them for
    a target that mixes layouts.
    """
    standard = [e for e in equations if not runtime_specific(e)]
    layouts = [e for e in equations if target.mixes_layouts and runtime_specific(e) and _changes_layout(e)]
    return (*standard, *layouts, *(e for e in equations if len(e.lhs_terms) >= LARGE))


def _changes_layout(equation: Equation) -> bool:
    return len(equation.lhs_terms) == 1 and traits(equation.lhs_terms[0]).layout and not can_shrink(equation)


@lru_cache(maxsize=1 << 14)
def can_shrink(equation: Equation) -> bool:
    """Whether the right side has fewer running terms than the left one for some choice of variables
    that are weights."""
    names = {n: 1 << i for i, n in enumerate(equation.lhs.inputs)}
    left, right = (_reached(side, names) for side in (equation.lhs, equation.rhs))
    return any(sum(bool(t & r) for t in right) < sum(bool(t & r) for t in left) for r in range(1, 1 << len(names)))


def _reached(side: Graph, names: Mapping[Node, int]) -> list[int]:
    """For every term the variables below it, as bits."""
    below: dict[Node, int] = {}
    for node in side:
        below[node] = names.get(node, 0)
        for arg in node.args:
            below[node] |= below[arg]
    return [bits for node, bits in below.items() if node.args and node.op != "item"]


def runtime_specific(equation: Equation) -> bool:
    """Whether a side uses an operator outside ONNX's own domain."""
    terms = (*equation.lhs_terms, *equation.rhs_terms)
    return any(n is not ABSENT and get(n.op).domain not in ("", "ai.onnx") for n in terms)


def multiplies_alike(equation: Equation) -> bool:
    """Whether both sides have products or convolutions, or neither has."""
    sides = (equation.lhs_terms, equation.rhs_terms)
    return len({any(n is not ABSENT and multiplies(n.op) for n in side) for side in sides}) == 1


def simplify(outputs: Sequence[Node], rules: Rules, context: Context) -> tuple[tuple[Node, ...], list[RewriteStep]]:
    """Apply, bottom-up until nothing changes, every law that makes the graph smaller and, on a
    roofline, no slower."""
    steps: list[RewriteStep] = []
    current = tuple(outputs)
    for _ in range(SWEEPS):
        swept = _Sweep(current, rules, context, steps).run()
        if swept == current or context.over():
            break
        current = swept
    return current, steps


_NUMBERS = count(1)


class _Sweep:
    def __init__(self, outputs: tuple[Node, ...], rules: Rules, context: Context, steps: list[RewriteStep]) -> None:
        self.outputs, self.rules, self.context, self.steps = outputs, context.helpful(rules), context, steps
        self.order = topological(outputs)
        self.done: dict[Node, Node] = {}
        """The terms that are no longer there, and their replacements."""
        self.number = next(_NUMBERS)

    @cached_property
    def uses(self) -> Counter[Node]:
        """How many terms use each; counted once something could be rewritten."""
        uses = Counter(a for n in self.order for a in set(n.args))
        uses.update(self.outputs)
        for old, new in self.done.items():
            uses[new] = max(uses[new], uses[old])
        return uses

    def run(self) -> tuple[Node, ...]:
        done = self.done
        for node in self.order:
            result = node
            if not done.keys().isdisjoint(node.args):
                result = with_args(node, tuple([done.get(a, a) for a in node.args]))
            if self._may_change(result):
                result = self._reduce(result, self.uses[node])
            if result is not node:
                done[node] = result
                if "uses" in self.__dict__:
                    self.uses[result] = max(self.uses[result], self.uses[node])
        return tuple([done.get(o, o) for o in self.outputs])

    def _may_change(self, node: Node) -> bool:
        """Whether a rule or a folding applies, if there is time to look; where none does, once."""
        if node in self.rules.settled or self.context.over():
            return False
        found = bool(self.rules.applications(node)) or fold_constants(node) is not node
        if not found:
            self.rules.settled.add(node)
        return found

    def _reduce(self, node: Node, uses: int) -> Node:
        for _ in range(16):
            folded = fold_constants(node)
            if folded is not node:
                self.steps.append(RewriteStep((FOLDING,), (node,), (folded,), self.number))
                return folded
            better = self._rewrite(node)
            if better is None:
                return node
            node = better
            self.uses[node] = max(self.uses[node], uses)
        return node

    def _rewrite(self, node: Node) -> Node | None:
        for application in self.rules.applications(node):
            if _smaller(application, self.uses, self.context):
                self.steps.append(RewriteStep((application.equation.name,), (node,), application.results, self.number))
                return application.results[0]
        return None


class _Once(dict[Node, int]):
    """Every term has one use."""

    def __missing__(self, node: Node) -> int:
        return 1


def removed_terms(found: Match, uses: Mapping[Node, int]) -> list[Node]:
    """The matched terms that become dead: the outputs, and terms that only dead terms use."""
    inside = topological(found.outputs, stop=set(found.operands.values()))
    dying: Counter[Node] = Counter()
    dead: list[Node] = []
    for node in reversed(inside):
        if node in found.outputs or 0 < dying[node] >= uses[node]:
            dying.update(dict.fromkeys(node.args, 1))
            if node.args and node.op != "item" and not is_weight(node):
                dead.append(node)
    return dead


def merge(outputs: Sequence[Node], rules: Rules, context: Context) -> tuple[tuple[Node, ...], list[RewriteStep]]:
    """Apply, in one walk, every equation with several outputs that makes the graph smaller and, on
    a roofline, no slower."""
    if context.over():
        return tuple(outputs), []
    order = topological(outputs)
    used_by = users(order)
    uses = Counter(a for n in order for a in set(n.args))
    uses.update(outputs)
    position = {node: i for i, node in enumerate(order)}
    waiting: dict[Node, list[Application]] = {}  # by the first of their outputs in the walk
    for node in order:
        for application in rules.joint_applications(node, used_by):
            waiting.setdefault(min(application.found.outputs, key=position.__getitem__), []).append(application)
    done: dict[Node, Node] = {}
    steps: list[RewriteStep] = []
    for node in order:
        if node in done:
            continue
        found = waiting.get(node, ())
        ready = (a for a in found if _ready(a, done) and _wanted(a.found, uses) and _smaller(a, uses, context))
        first = next(ready, None)
        if first is None:
            done[node] = with_args(node, tuple(done[a] for a in node.args))
            continue
        old, new = ([_rebuilt(n, done) for n in side] for side in (first.found.outputs, first.results))
        done.update(zip(first.found.outputs, new, strict=True))
        steps.append(RewriteStep((first.equation.name,), tuple(old), tuple(new)))
    return tuple(done[o] for o in outputs), steps


def _ready(application: Application, done: Mapping[Node, Node]) -> bool:
    """Whether all matched terms precede the current place in the walk, and no output was rewritten
    yet."""
    found = application.found
    return all(o not in done for o in found.outputs) and all(n in done or is_weight(n) for n in found.operands.values())


def _wanted(found: Match, uses: Mapping[Node, int]) -> bool:
    """Whether every output is used outside of the match; otherwise an equation with fewer outputs
    applies."""
    inside = topological(found.outputs, stop=set(found.operands.values()))
    return all(uses[o] > sum(o in n.args for n in inside) for o in found.outputs)


def _rebuilt(node: Node, done: Mapping[Node, Node]) -> Node:
    """A term over operands as they are now."""
    made: dict[Node, Node] = {}
    for each in topological([node], stop=done):
        made[each] = with_args(each, tuple(made.get(a) or done[a] for a in each.args))
    return made[node] if node in made else done[node]


def _computes_again(application: Application, removed: Sequence[Node], added: Sequence[Node]) -> bool:
    """Whether an application computes a product or convolution again that other terms also use. A
    roofline may predict that this is cheaper than reading a larger result."""
    if not any(multiplies(n.op) for n in application.equation.lhs_terms):
        return False
    return sum(multiplies(n.op) for n in added) > sum(multiplies(n.op) for n in removed)


def _smaller(application: Application, uses: Mapping[Node, int], context: Context) -> bool:
    """Whether an application reduces the number of running terms and is no slower on a roofline, or
    keeps the number and is faster; terms with other users stay. All new terms must be writable."""
    new = new_terms(application.results, application.found.operands)
    added = [n for n in new if n.op != "item" and not is_weight(n)]
    removed = removed_terms(application.found, uses)
    if not removed or len(added) > len(removed) or _computes_again(application, removed, added):
        return False
    before, after = (sum(map(context.estimate, terms)) for terms in (removed, added))
    if after > before * (1.0 if len(added) < len(removed) else FASTER):
        return False
    if not all(context.legal(n) for n in new):  # tested last, because it may open a session or compute weights
        return False
    if context.slower is None or not runtime_specific(application.equation):
        return True
    return not context.slower(*_sides(application, removed))


def _sides(application: Application, removed: Sequence[Node]) -> tuple[tuple[Node, ...], tuple[Node, ...]]:
    """The terms that run before an application and after it, over leaves in place of the operands:
    equal sides at other places are the same terms. Terms that other users still need are in
    both."""
    found = application.found
    operands = list(dict.fromkeys(found.operands.values()))
    inside = topological(found.outputs, stop=set(operands))
    stays = [n for n in inside if n.args and n.op != "item" and n not in removed and not is_weight(n)]
    done = {node: _leaf(node, f"i{i}") for i, node in enumerate(operands)}
    before, after = (tuple([_over(n, done) for n in (*side, *stays)]) for side in (found.outputs, application.results))
    return before, after


def _leaf(node: Node, name: str) -> Node:
    if not isinstance(node.type, Tensor) or node.op in ("constant", "extents"):
        return node
    return (weight if is_weight(node) else variable)(name, node.type)


def _over(node: Node, done: dict[Node, Node]) -> Node:
    """A term over other operands; `done` has them, and gets the new terms."""
    for each in topological([node], stop=done):
        done[each] = with_args(each, tuple([done[a] for a in each.args]))
    return done[node]
