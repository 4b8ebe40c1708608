"""An oracle that shares nothing with the prover: typings of a rule drawn plainly, and both sides
computed in numpy.

A rule claims every typing that its operators' type rules and its guard admit. Here sizes, ranks,
dtypes, attributes and constants are drawn far from the rule's own typing; `match` finds and
`apply_equation` builds an instance, which is a case only where ONNX allows every term of both
sides. Integers wrap in their own dtype; floats are real numbers, in float64, and differences are
computed again in longer numbers, so that a rounding is no counterexample. A cast that narrows
rounds.
"""

from __future__ import annotations

import ast
import itertools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from random import Random
from typing import Any

import numpy as np
import onnx

from taso_mirage.errors import TasoMirageError
from taso_mirage.ir.dims import dim_product, fixed, symbols
from taso_mirage.ir.dims import evaluate as size_at
from taso_mirage.ir.terms import (
    ABSENT,
    Graph,
    Literal,
    Node,
    Tensor,
    constant,
    is_float,
    numpy_dtype,
    topological,
    users,
    variable,
    weight,
)
from taso_mirage.meanings.reals import Reals
from taso_mirage.operators.expressions import Expr
from taso_mirage.operators.expressions import names_in_expression as free_names
from taso_mirage.operators.interpret import interpret_term
from taso_mirage.operators.ops import get
from taso_mirage.rewriting.equation import Equation, apply_equation, matches
from taso_mirage.rewriting.library import Rule, parse_attributes, parse_given
from taso_mirage.rewriting.patterns import REST
from taso_mirage.rewriting.text import law_typing, parse_type
from taso_mirage.verdicts import Failure, FailureKind

Array = np.ndarray[Any, Any]
ILLEGAL = (
    *(TasoMirageError, LookupError, TypeError, ValueError, ZeroDivisionError, OverflowError, AttributeError),
    *(RecursionError, MemoryError),
)
"""Errors of building or running a draw that is no typing."""
FLOATS = ("float32", "float16", "float64", "bfloat16")
INTEGERS = ("int64", "int32", "int16", "int8", "uint8", "uint16", "uint32", "uint64")
ELEMENTS = 200
"""Operands with more elements are not drawn."""
JUMPS = frozenset(
    """
    floor ceil round sign equal greater less greater_or_equal less_or_equal argmax argmin mod cast cast_like
    thresholded_relu shrink where isnan isinf
    """.split()
)
"""Operators that are not continuous (or choose by one that is not)."""
RATIONAL = (
    frozenset(
        """
    add sub mul neg abs max min sum relu clip matmul gemm prelu leaky_relu reduce_sum reduce_max reduce_min
    reduce_prod reduce_l1 reduce_sum_square cumsum cast transpose reshape squeeze unsqueeze flatten concat
    slice split item gather pad gather_elements gather_nd expand tile trilu max_pool global_max_pool conv
    constant one_hot resize depth_to_space space_to_depth extents eye_like range einsum cast_like logical_and
    logical_or logical_not logical_xor
    """.split()
    )
    | JUMPS
)
"""Operators that are exact on small whole numbers."""
SATURATING = frozenset(
    """
    sigmoid tanh erf softmax log_softmax gelu softplus exp swish mish elu selu celu quick_gelu fast_gelu
    contrib_gelu bias_gelu reduce_log_sum_exp attention cosh multi_head_attention packed_attention softsign
    sinh atan
    """.split()
)
"""Operators whose results are soon equal in float64 although they are not."""


@dataclass(frozen=True, slots=True)
class Counterexample:
    """One instance with inputs on which the sides differ: the values of the names, and both
    results."""

    types: Mapping[str, str]
    attributes: Mapping[str, Any]
    inputs: Mapping[str, Any]
    output: int
    index: tuple[int, ...]
    left: Array
    right: Array
    lhs: tuple[Node, ...]
    rhs: tuple[Node, ...]
    arrays: Mapping[Node, Array]

    def as_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        return {
            "types": dict(self.types),
            "attributes": {k: repr(v) for k, v in self.attributes.items()},
            "inputs": {k: _plain(v) for k, v in self.inputs.items()},
            "output": self.output,
            "index": list(self.index),
            "left": _plain(self.left),
            "right": _plain(self.right),
        }

    def __str__(self) -> str:
        shown = [f"{n}: {t}" for n, t in self.types.items()] + [f"{n} = {v!r}" for n, v in self.attributes.items()]
        values = [f"{n} = {_plain(v)}" for n, v in self.inputs.items()]
        at = f"output {self.output}{list(self.index)}: {self.left[self.index]} against {self.right[self.index]}"
        return "\n".join([", ".join(shown), *values, at])


def _plain(value: Any) -> Any:
    if isinstance(value, np.ndarray):
        return value.astype(np.float64).tolist() if value.dtype.kind in "fV" else value.tolist()
    return value


def as_rule(law: Equation) -> Rule:
    """A law as a rule: with the typing that stands below it, if there is one."""
    given, _, attributes = law_typing(law.name).partition("|")
    return Rule(law.name, len(law.lhs_terms), parse_given(given), parse_attributes(attributes), law)


def refute(
    rule: Rule, seed: int = 0, draws: int = 600, tries: int = 40, strict: bool = True, plain: bool = False
) -> Counterexample | None:
    """A counterexample within `draws` instances, else None.

    At most `draws * tries` typings are drawn.

    `strict`: quotients of integers count too, which `apply_equation` refuses. `plain`: no axes that
    count from the end, since models that are read have none.
    """
    return examine(rule, seed, draws, tries, strict, plain).counterexample


@dataclass(slots=True)
class Examined:
    """How many instances and runs a rule had, and its refutation."""

    instances: int = 0
    runs: int = 0
    counterexample: Counterexample | None = None


def examine(
    rule: Rule, seed: int = 0, draws: int = 600, tries: int = 40, strict: bool = True, plain: bool = False
) -> Examined:
    """`refute`, with how much was looked at."""
    found = Examined()
    rng = Random(f"{rule.name} {seed}")
    numbers = np.random.default_rng(abs(hash_of(f"{rule.name} {seed}")))
    for lhs, rhs, names in instances(rule, rng, draws, tries, strict, plain):
        found.instances += 1
        for _ in range(3):
            outcome = compare(rule.equation, lhs, rhs, names, rng, numbers)
            found.runs += outcome is not None
            if isinstance(outcome, Counterexample):
                found.counterexample = outcome
                return found
    return found


def hash_of(text: str) -> int:
    """A hash that is equal in every run."""
    import zlib

    return zlib.crc32(text.encode())


# ---------------------------------------------------------------- the rules of ONNX


def legal(node: Node) -> bool:
    """Whether ONNX has a node for the term, with its operands' and results' dtypes."""
    if not node.args or node.op == "item":
        return True
    return _legal(node.op, tuple(None if a is ABSENT else a.type for a in node.args), node.attrs, node)


_KNOWN: dict[Any, bool] = {}


def _legal(op_name: str, types: Any, attrs: Any, node: Node) -> bool:
    key = (op_name, types, attrs)
    if key not in _KNOWN:
        _KNOWN[key] = _allowed(node)
    return _KNOWN[key]


def _allowed(node: Node) -> bool:
    op = get(node.op)
    dtypes = [a.dtype for a in node.args if isinstance(a.type, Tensor) and a is not ABSENT]
    floats = [d for d in dtypes if is_float(d)]
    if not _fits(node, dtypes):
        return False
    if op.onnx is None:
        return set(dtypes) <= {"float32"}
    if op.domain:
        return set(floats) <= {"float32", "float16"} and len(set(floats)) == 1
    for opset in (onnx.defs.onnx_opset_version(), 24, 22, 20, 8):
        try:
            call = op.to_onnx(node, opset)
            schema = onnx.defs.get_schema(call.op_type, opset, call.domain)
        except (*ILLEGAL, onnx.defs.SchemaError):
            continue
        return _matches_schema(schema, [None if a is ABSENT else a.dtype for a in call.args], node)
    return False


def _fits(node: Node, dtypes: Sequence[str]) -> bool:
    """Whether a term keeps conditions that schemas do not state: scalar bounds, remainders of
    floats, windows that are all padding, attributes of integers."""
    attrs = dict(node.attrs)
    if node.op in ("softmax", "log_softmax", "layer_norm", "rms_norm", "lp_norm"):
        return -node.args[0].tensor.rank <= attrs["axis"] < node.args[0].tensor.rank
    if node.op == "clip":
        return all(a is ABSENT or a.shape == () for a in node.args[1:])
    if node.op == "mod":
        return bool(attrs["fmod"]) or not is_float(dtypes[0])
    if node.op == "pow":
        return dtypes[0] == dtypes[1] or is_float(dtypes[0])
    if node.op in ("max_pool", "average_pool", "lp_pool"):
        pads, kernel = attrs["pads"], attrs["kernel"]
        sizes = zip(node.args[0].shape[2:], attrs["dilations"], strict=False)
        return all(0 <= p < k for p, k in zip(pads, (*kernel, *kernel), strict=False)) and all(n >= d for n, d in sizes)
    if node.op in ("conv", "conv_transpose", "nhwc_conv"):
        positive = (*attrs["strides"], *attrs["dilations"], attrs["group"])
        return min(attrs["pads"], default=0) >= 0 and min(positive) >= 1
    if node.op == "pad" and attrs["mode"] != "constant":
        shape = node.args[0].shape
        room = 1 if attrs["mode"] == "reflect" else 0
        pads = zip(attrs["pads"], (*shape, *shape), strict=False)
        return all(p >= 0 and (attrs["mode"] == "edge" or p <= n - room) for p, n in pads)
    if node.op in ("tile", "resize", "upsample"):
        return min(attrs.get("repeats", attrs.get("factors", ())), default=1) >= 1
    if node.op in ("gemm", "shrink", "thresholded_relu", "leaky_relu", "pad") and not is_float(dtypes[0]):
        return all(float(v).is_integer() for v in attrs.values() if isinstance(v, float))
    if node.op == "depth_to_space" or node.op == "space_to_depth":
        return node.args[0].tensor.rank == 4
    if node.op == "batch_norm" or node.op == "instance_norm":
        return node.args[0].tensor.rank >= 2 and attrs["epsilon"] >= 0
    return True


def _matches_schema(schema: Any, dtypes: Sequence[str | None], node: Node) -> bool:
    allowed = {c.type_param_str: set(c.allowed_type_strs) for c in schema.type_constraints}
    bound: dict[str, str] = {}
    results = node.type if isinstance(node.type, tuple) else (node.type,)
    outputs = [r.dtype for r in results if isinstance(r, Tensor)]
    for formals, actual in ((schema.inputs, dtypes), (schema.outputs, outputs)):
        for i, dtype in enumerate(actual):
            if i >= len(formals) and not (
                formals and formals[-1].option == onnx.defs.OpSchema.FormalParameterOption.Variadic
            ):
                return False
            formal = formals[min(i, len(formals) - 1)]
            if dtype is None:
                if formal.option == onnx.defs.OpSchema.FormalParameterOption.Single:
                    return False
                continue
            name = _schema_name(dtype)
            if name not in allowed.get(formal.type_str, {formal.type_str}):
                return False
            if formal.is_homogeneous and bound.setdefault(formal.type_str, name) != name:
                return False
    return True


def _schema_name(dtype: str) -> str:
    return f"tensor({ {'float32': 'float', 'float64': 'double'}.get(dtype, dtype) })".replace(" ", "")


# ---------------------------------------------------------------- typings


@dataclass(frozen=True, slots=True)
class Seed:
    """One typing to start from: dtypes, dims (letters or numbers), values of operands that are
    given as such, attributes."""

    types: Mapping[str, tuple[str, tuple[Any, ...]]]
    values: Mapping[str, Array]
    attributes: Mapping[str, Any]


def instances(
    rule: Rule,
    rng: Random,
    draws: int,
    tries: int = 40,
    strict: bool = True,
    plain: bool = False,
    examples: int = 16,
) -> Iterator[tuple[tuple[Node, ...], tuple[Node, ...], Mapping[str, Any]]]:
    """Instances of a rule, both sides and the values of the names; some may come twice. Where no
    typing is given, those of so many `examples` are drawn from."""
    drawing = _Drawing(rule, rng, plain, examples)
    found = 0
    for _ in range(draws * tries):
        if found >= draws:
            return
        instance = drawing.instance(strict)
        if instance is not None:
            found += 1
            yield instance


class _Drawing:
    def __init__(self, rule: Rule, rng: Random, plain: bool, examples: int) -> None:
        self.equation, self.rng, self.plain = rule.equation, rng, plain
        self.guard = rule.equation.where.source if rule.equation.where else ""
        self.conjuncts = conjuncts(self.guard)
        self.names = [n.attr("name") for n in rule.equation.lhs.inputs]
        self.seeds: list[Seed] = []
        self.dead: dict[Any, int] = {}
        if rule.given or not self.names:
            given = {n: (t.dtype, tuple(t.shape or ())) for n, t in rule.given}
            self.seeds.append(Seed(given, {}, dict(rule.attributes)))
        else:
            self.seeds = list(itertools.islice(self._examples(), examples))

    def _examples(self) -> Iterator[Seed]:
        """Typings that fit, from the examples of the operators of the left side."""
        kept = 0
        for i in range(3000):
            if kept and i > 400 * kept + 400:
                return
            seed = self._example(i)
            try:
                if i % 4 == 3:  # attributes that fit the operands, where no example has both
                    types = {n: Tensor(d, s) for n, (d, s) in seed.types.items()}
                    bound = self._bind(types, seed.attributes, seed.values) or {}
                    seed = replace(seed, attributes={n: v for n, v in bound.items() if not isinstance(v, Node)})
                names = self._names(seed, {}, seed.attributes)
                build(self.equation.lhs, names, self.rng)
            except ILLEGAL:
                continue
            if not _holds(self.equation, names) and i < 1500:
                continue
            kept += 1
            yield seed

    def _example(self, i: int) -> Seed:
        """Operands of one example an operator, or of one for all of its uses; one operator's
        operands fit each other."""
        rng = self.rng
        types: dict[str, Any] = {}
        values: dict[str, Array] = {}
        attributes: dict[str, Any] = {}
        chosen: dict[str, Any] = {}
        order = list(self.equation.lhs_terms) + (list(self.equation.rhs_terms) if i % 3 == 0 else [])
        rng.shuffle(order)
        for node in order:
            if node is ABSENT:
                continue
            op = get(node.op)
            fitting = [e for e in op.examples if op.variadic or len(e.operands) >= len(node.args)]
            if not fitting:
                continue
            example = rng.choice(fitting)
            if i % 2:
                example = chosen.setdefault(node.op, example)
            self._example_attributes(node, op.normalise(dict(example.attrs)), attributes)
            for arg, operand in zip(node.args, example.operands, strict=False):
                for leaf in topological([arg]) if i % 5 else [arg]:
                    if leaf.op != "input" or leaf.attr("name") in types or operand is None:
                        continue
                    name = leaf.attr("name")
                    if isinstance(operand, str):
                        type = parse_type(operand)
                        types[name] = (type.dtype, tuple(type.shape or ()))
                    else:
                        values[name] = np.asarray(operand, np.int64)
                        types[name] = ("int64", values[name].shape)
        for name in self.names:
            types.setdefault(name, ("float32", rng.choice(((2, 3), (), (3,)))))
        known = {n: Tensor(d, s) for n, (d, s) in types.items()}
        self._solve_types(known, attributes, 1.0)
        types = {n: (t.dtype, tuple(t.shape or ())) for n, t in known.items()}
        return Seed(types, {n: v for n, v in values.items() if v.shape == types[n][1]}, attributes)

    def _example_attributes(self, node: Node, values: Mapping[str, Any], attributes: dict[str, Any]) -> None:
        for key, wanted in node.attrs:
            if key == REST:
                given = {k for k, _ in node.attrs}
                attributes.setdefault(wanted.source, tuple(sorted((k, v) for k, v in values.items() if k not in given)))
            elif isinstance(wanted, Expr) and wanted.name is not None and key in values:
                attributes.setdefault(wanted.name, values[key])

    # -------------------------------------------------------- one instance

    def instance(self, strict: bool) -> tuple[tuple[Node, ...], tuple[Node, ...], Mapping[str, Any]] | None:
        if not self.seeds:
            return None
        seed = self.rng.choice(self.seeds)
        types, attributes, values = self._varied(seed)
        signature = tuple(sorted((n, t.dtype) for n, t in types.items()))
        if self.dead.get(signature, 0) >= 40:
            return None
        try:
            names = self._bind(types, attributes, values)
            if names is None or not _holds(self.equation, names):
                return None
            lhs = build(self.equation.lhs, names, self.rng)
        except ILLEGAL:
            return None
        terms = topological(lhs)
        if any(_typed(n) and min(n.shape, default=1) < 1 for n in terms):
            return None
        if not all(map(legal, terms)):
            self.dead[signature] = self.dead.get(signature, 0) + 1
            return None
        self.dead[signature] = -1000
        right = self._right(lhs, terms, names, strict)
        if right is None:
            return None
        rhs, found = right
        inside = topological(rhs)
        if not all(map(legal, inside)) or sum(int(dim_product(n.shape)) for n in inside if _typed(n)) > 20_000:
            return None
        return lhs, rhs, found

    def _right(
        self, lhs: tuple[Node, ...], terms: list[Node], names: Mapping[str, Any], strict: bool
    ) -> tuple[tuple[Node, ...], Mapping[str, Any]] | None:
        """The terms that `apply_equation` builds for a match of these very outputs, and the values
        of the names in it."""
        try:
            each = itertools.islice(matches(self.equation, lhs[0], users(terms)), 20)
            found = next((m for m in each if m.outputs == lhs), None)
            if found is None:  # outputs that share nothing are not found from the first one
                return self._built(lhs, names) if len(lhs) > 1 else None
            rhs = apply_equation(self.equation, found)
        except ILLEGAL:  # a number of the right side that the dtype does not have
            return None
        if not isinstance(rhs, Failure):
            return rhs, found.names
        return self._built(lhs, found.names) if strict and rhs.kind is FailureKind.EXCLUDED else None

    def _built(
        self, lhs: tuple[Node, ...], names: Mapping[str, Any]
    ) -> tuple[tuple[Node, ...], Mapping[str, Any]] | None:
        try:
            built = build(self.equation.rhs, names, None, lhs[0].dtype if _typed(lhs[0]) else "float32")
        except ILLEGAL:
            return None
        return (built, names) if all(a.type == b.type for a, b in zip(lhs, built, strict=True)) else None

    def _varied(self, seed: Seed) -> tuple[dict[str, Tensor], dict[str, Any], dict[str, Array]]:
        """Random sizes, shapes and dtypes other than the seed's."""
        rng = self.rng
        letters = sorted({s for _, shape in seed.types.values() for d in shape for s in symbols(d)} | _letters(seed))
        choices = rng.choice(((1, 2, 3, 4, 5, 6), (1, 2, 3), (2, 3), (1, 2)))
        alike = rng.choice(choices) if rng.random() < 0.15 else 0
        sizes = {s: alike or rng.choice(choices) for s in letters}
        other: dict[int, int] = {}
        if rng.random() < 0.45:
            whole = {d for _, shape in seed.types.values() for d in shape if isinstance(d, int) and d > 1}
            level = rng.choice((0, 0, 0, 2, 3))
            other = {d: level or rng.choice((1, 2, 2, 3, 4, 5)) for d in whole}
        shapes: dict[str, list[int]] = {}
        for name, (_, shape) in seed.types.items():
            shapes[name] = [other.get(d, d) if isinstance(d, int) else size_at(d, sizes) for d in shape]
        if rng.random() < 0.75:
            for _ in range(rng.choice((1, 1, 1, 2, 2, 3))):
                rng.choice(SHAPES)(shapes, rng)
        table = self._dtypes(seed)
        types = {n: Tensor(table(n, d), tuple(shapes[n])) for n, (d, _) in seed.types.items()}
        attributes = {n: fixed(v, sizes) for n, v in seed.attributes.items()}
        self._solve_types(types, attributes, 0.8)
        values = {}
        for name, value in seed.values.items():
            if types[name].shape == value.shape and rng.random() < 0.6:
                values[name] = value
        return types, attributes, values

    def _dtypes(self, seed: Seed) -> Callable[[str, str], str]:
        """Operands of equal dtype get another one together; now and then one alone."""
        rng = self.rng
        table: dict[str, str] = {}
        pools = (FLOATS, FLOATS[:1], INTEGERS, INTEGERS, ("bool",))
        for dtype in dict.fromkeys(d for d, _ in seed.types.values()):
            if rng.random() < 0.35:
                table[dtype] = dtype
            else:
                table[dtype] = rng.choice(rng.choice(pools))
        alone = rng.choice(list(seed.types)) if seed.types and rng.random() < 0.1 else None
        if alone is None:
            return lambda n, d: table[d]
        dtype = rng.choice((*FLOATS, *INTEGERS, "bool"))
        return lambda n, d: dtype if n == alone else table[d]

    def _solve_types(self, types: dict[str, Tensor], attributes: Mapping[str, Any], share: float) -> None:
        """Shapes, ranks and dtypes that the guard asks for by an equality."""
        for tree in self.conjuncts:
            if self.rng.random() < share:
                _solve_type(tree, types, attributes, self.rng)

    def _bind(
        self, types: Mapping[str, Tensor], attributes: Mapping[str, Any], values: Mapping[str, Array]
    ) -> dict[str, Any] | None:
        if any(int(dim_product(t.shape or ())) > ELEMENTS for t in types.values()):
            return None
        names = self._names(Seed({n: (t.dtype, tuple(t.shape or ())) for n, t in types.items()}, values, {}), {}, {})
        keep = self.rng.random() < 0.3
        for node in self.equation.lhs_terms:
            if node is ABSENT or not any(isinstance(v, Expr) for _, v in node.attrs):
                continue
            try:
                operands = build(Graph((), node.args), names, None) if node.args else ()
            except ILLEGAL:
                operands = None
            if operands is None:
                return None
            _draw_attributes(node, operands, names, attributes, self.rng, keep, self.plain)
        for tree in self.conjuncts:
            if self.rng.random() < 0.8:
                _solve_name(tree, names)
        return names

    def _names(self, seed: Seed, drawn: Mapping[str, Any], attributes: Mapping[str, Any]) -> dict[str, Any]:
        """Leaves for the variables: constants and weights where the guard speaks of them."""
        names: dict[str, Any] = dict(attributes)
        for name, (dtype, shape) in seed.types.items():
            if name in seed.values:
                names[name] = constant(seed.values[name].astype(numpy_dtype(dtype)))
            elif f"value({name})" in self.guard or f"is_constant({name})" in self.guard:
                names[name] = constant(np.full(shape, number(dtype, self.rng)).astype(numpy_dtype(dtype)))
            elif f"is_weight({name})" in self.guard:
                names[name] = weight(name, Tensor(dtype, shape))
            else:
                names[name] = variable(name, Tensor(dtype, shape))
        return names


def _letters(seed: Seed) -> set[str]:
    found: set[str] = set()

    def walk(value: Any) -> None:
        if isinstance(value, tuple):
            for each in value:
                walk(each)
        elif not isinstance(value, int | float | str | bytes) and hasattr(value, "terms"):
            found.update(symbols(value))

    for value in seed.attributes.values():
        walk(value)
    return found


def _typed(node: Node) -> bool:
    return isinstance(node.type, Tensor) and node is not ABSENT


def _holds(equation: Equation, names: Mapping[str, Any]) -> bool:
    try:
        return equation.where is None or bool(equation.where(names))
    except ILLEGAL:
        return False


def number(dtype: str, rng: Random) -> float | int | bool:
    """A number of a dtype: of a continuum, small and whole, or an extreme integer."""
    if dtype == "bool":
        return rng.random() < 0.5
    if not is_float(dtype):
        info = np.iinfo(dtype)
        low, high = int(info.min), int(info.max)
        small = rng.randint(max(low, -4), 4)
        return rng.choice((small, small, rng.choice((low, low + 1, high, high - 1)), rng.randint(low, high)))
    return rng.choice(
        (
            *(float(rng.randint(-4, 4)), rng.uniform(-3, 3), rng.uniform(0.1, 2)),
            *(rng.choice((0.5, 2.0, -0.5, -1.0, 1.0, 0.25, 4.0)), round(rng.gauss(0, 5), 2)),
        )
    )


def build(side: Graph, names: Mapping[str, Any], rng: Random | None, like: str = "float32") -> tuple[Node, ...]:
    """One side with terms for its names.

    With `rng` a number may stand as a constant of any shape: all of them match.
    """
    done: dict[Node, Node] = {}
    for node in topological(side.outputs):
        if node.op == "input":
            done[node] = names[node.attr("name")]
        elif node.op == "splat":
            done[node] = constant(np.asarray(node.attr("value")).astype(numpy_dtype(like)))
        elif node is ABSENT:
            done[node] = node
        else:
            done[node] = _term(node, done, names, rng)
    return tuple(done[o] for o in side.outputs)


def _term(node: Node, done: Mapping[Node, Node], names: Mapping[str, Any], rng: Random | None) -> Node:
    attrs: dict[str, Any] = {}
    for key, value in node.attrs:
        if key == REST:
            attrs.update(names[str(value)])
        else:
            attrs[key] = value(names) if isinstance(value, Expr) else value
    args = [done[a] for a in node.args]
    others = [a for a, p in zip(args, node.args, strict=True) if p.op != "splat" and _typed(a)]
    if others:
        dtype = next((a.dtype for a in others if a.dtype != "bool"), others[0].dtype)
        for i, pattern in enumerate(node.args):
            if pattern.op == "splat":
                shape: tuple[int, ...] = ()
                if rng is not None and rng.random() < 0.3:
                    shape = rng.choice(((1,), (1, 1), (1, 1, 1), tuple(others[0].shape), (2, *others[0].shape)))
                args[i] = constant(np.full(shape, pattern.attr("value")).astype(numpy_dtype(dtype)))
    return get(node.op).term(*args, **attrs)


# ---------------------------------------------------------------- guards


@cache
def conjuncts(source: str) -> tuple[ast.expr, ...]:
    """The parts of a guard that `and` joins."""
    if not source:
        return ()
    tree = ast.parse(source, mode="eval").body
    return tuple(tree.values) if isinstance(tree, ast.BoolOp) and isinstance(tree.op, ast.And) else (tree,)


def _sides(tree: ast.expr) -> Iterator[tuple[ast.expr, ast.expr, bool]]:
    """The equalities of an expression: (a, b, whether b lists alternatives)."""
    if isinstance(tree, ast.BoolOp):  # an alternative of an `or`
        yield from _sides(tree.values[0])
    if not isinstance(tree, ast.Compare):
        return
    parts = [tree.left, *tree.comparators]
    for op, a, b in zip(tree.ops, parts, parts[1:], strict=False):
        if isinstance(op, ast.Eq):
            yield a, b, False
            yield b, a, False
        elif isinstance(op, ast.In):
            yield a, b, True


def _value_of(tree: ast.expr, names: Mapping[str, Any]) -> Any:
    return Expr(ast.unparse(tree))(names)


def _solve_type(tree: ast.expr, types: dict[str, Tensor], attributes: Mapping[str, Any], rng: Random) -> None:
    for a, b, several in _sides(tree):
        leaves = {n: variable(n, t) for n, t in types.items()}
        try:
            value = _value_of(b, {**attributes, **leaves})
        except ILLEGAL:
            continue
        if several:
            if not isinstance(value, tuple) or not value:
                continue
            value = rng.choice(value)
        pairs = list(zip(a.elts, value, strict=False)) if isinstance(a, ast.Tuple) and isinstance(value, tuple) else []
        for left, wanted in pairs or [(a, value)]:
            _set_type(left, wanted, types)


def _set_type(tree: ast.expr, wanted: Any, types: dict[str, Tensor]) -> None:
    match tree:
        case ast.Call(func=ast.Name(id=function), args=[ast.Name(id=name), *rest]) if name in types:
            type = types[name]
            shape = list(type.shape or ())
            if function == "shape" and isinstance(wanted, tuple):
                types[name] = Tensor(type.dtype, wanted)
            elif function == "dtype" and isinstance(wanted, str):
                types[name] = Tensor(wanted, type.shape)
            elif function == "rank" and isinstance(wanted, int):
                kept = shape[max(len(shape) - wanted, 0) :]
                types[name] = Tensor(type.dtype, ((1,) * (wanted - len(kept)) + tuple(kept)))
            elif function == "size" and wanted == 1:
                types[name] = Tensor(type.dtype, (1,) * len(shape))
            elif function == "dim" and isinstance(wanted, int) and rest:
                axis = _number(rest[0])
                if axis is not None and -len(shape) <= axis < len(shape):
                    shape[axis] = wanted
                    types[name] = Tensor(type.dtype, tuple(shape))
        case ast.Subscript(value=ast.Call(func=ast.Name(id="shape"), args=[ast.Name(id=name)]), slice=index):
            if name in types and isinstance(index, ast.Slice) and isinstance(wanted, tuple):
                ends = [end for end in (index.lower, index.upper) if end is not None]
                if None in map(_number, ends):  # an end that is computed
                    return
                shape = list(types[name].shape or ())
                shape[_number(index.lower) : _number(index.upper)] = wanted
                types[name] = Tensor(types[name].dtype, tuple(shape))


def _number(tree: ast.expr | None) -> int | None:
    """The number that a literal is; None for any other expression."""
    match tree:
        case ast.Constant(value=int(n)):
            return n
        case ast.UnaryOp(op=ast.USub(), operand=ast.Constant(value=int(n))):
            return -n
    return None


def _solve_name(tree: ast.expr, names: dict[str, Any]) -> None:
    """An attribute or a constant that the guard says by an equality."""
    for a, b, several in _sides(tree):
        if several:
            continue
        match a:
            case ast.Name(id=name) if name in names and not isinstance(names[name], Node):
                wanted = _try(b, names)
                if wanted is not None:
                    names[name] = wanted
            case ast.Call(func=ast.Name(id="value"), args=[ast.Name(id=name)]) if isinstance(names.get(name), Node):
                wanted = _try(b, names)
                if isinstance(wanted, int | float):
                    node = names[name]
                    names[name] = constant(np.full(node.shape, wanted).astype(numpy_dtype(node.dtype)))
    if isinstance(tree, ast.Call) and isinstance(tree.func, ast.Name) and tree.func.id == "close":
        for a, b in (tree.args, tree.args[::-1]):
            both = ast.Compare(a, [ast.Eq()], [b])
            _solve_name(both, names)


def _try(tree: ast.expr, names: Mapping[str, Any]) -> Any:
    try:
        return _value_of(tree, names)
    except ILLEGAL:
        return None


# ---------------------------------------------------------------- shapes

Shapes = dict[str, list[int]]


def _thin(shapes: Shapes, rng: Random) -> None:
    """Dims of 1 in one operand."""
    shape = shapes[rng.choice(list(shapes))]
    share = rng.choice((0.3, 0.6, 1.0))
    shape[:] = [1 if rng.random() < share else n for n in shape]


def _thin_axis(shapes: Shapes, rng: Random) -> None:
    """One axis is 1 wherever it is."""
    axis = -rng.randint(1, 4)
    for shape in shapes.values():
        if len(shape) >= -axis:
            shape[axis] = 1


def _lower(shapes: Shapes, rng: Random) -> None:
    """A lower rank of one operand."""
    shape = shapes[rng.choice(list(shapes))]
    del shape[: rng.randint(1, max(len(shape), 1))]


def _lower_all(shapes: Shapes, rng: Random) -> None:
    for shape in shapes.values():
        del shape[:1]


def _higher(shapes: Shapes, rng: Random) -> None:
    """More dims in front of some operands."""
    lead = [rng.choice((1, 2, 3)) for _ in range(rng.choice((1, 1, 2)))]
    everywhere = rng.random() < 0.5
    for shape in shapes.values():
        if everywhere or rng.random() < 0.5:
            shape[:0] = [1 if rng.random() < 0.2 else n for n in lead]


def _change(shapes: Shapes, rng: Random) -> None:
    """Change a size in one place, preferably to one that occurs."""
    shape = shapes[rng.choice(list(shapes))]
    there = [n for s in shapes.values() for n in s] + [1, 2, 3, 4, 5, 6]
    if shape:
        shape[rng.randrange(len(shape))] = rng.choice(there)


def _swap(shapes: Shapes, rng: Random) -> None:
    rng.shuffle(shapes[rng.choice(list(shapes))])


def _copy(shapes: Shapes, rng: Random) -> None:
    shapes[rng.choice(list(shapes))][:] = list(shapes[rng.choice(list(shapes))])


def _tail(shapes: Shapes, rng: Random) -> None:
    """The last dims of another operand, some of them 1."""
    other = shapes[rng.choice(list(shapes))]
    shapes[rng.choice(list(shapes))][:] = [1 if rng.random() < 0.3 else n for n in other[rng.randint(0, len(other)) :]]


def _move(shapes: Shapes, rng: Random) -> None:
    """Move a size along an axis from one operand to another: the sum of sizes stays as it is."""
    name = rng.choice(list(shapes))
    first = shapes[name]
    others = [shape for n, shape in shapes.items() if n != name and len(shape) == len(first) > 0]
    if others:
        second, axis = rng.choice(others), rng.randrange(len(first))
        taken = rng.choice((first[axis] - 1, rng.randint(0, max(first[axis] - 1, 0))))
        first[axis] -= taken
        second[axis] += taken


def _fewer(shapes: Shapes, rng: Random) -> None:
    """Some operands at once with the same lower rank and dims of 1: `concat` of those is as wide as
    there are of them."""
    chosen = [n for n in shapes if rng.random() < 0.5]
    keep, share = rng.choice((0, 1, 1, 2)), rng.choice((0.5, 1.0))
    for name in chosen:
        shape = shapes[name]
        shape[:] = [1 if rng.random() < share else n for n in shape[max(len(shape) - keep, 0) :]]


def _level(shapes: Shapes, rng: Random) -> None:
    """All dims alike: axes may be mistaken for each other."""
    n = rng.choice((2, 3))
    for shape in shapes.values():
        shape[:] = [1 if m == 1 else n for m in shape]


SHAPES: tuple[Callable[[Shapes, Random], None], ...] = (
    *(_thin, _thin, _thin_axis, _lower, _lower, _lower_all, _higher, _change, _change, _swap, _copy, _tail, _level),
    *(_fewer, _fewer, _move, _move),
)

# ---------------------------------------------------------------- attributes

FLAGS = frozenset(
    """
    keepdims exclusive reverse upper select_last_index transA transB fmod interleaved is_causal
    detect_negative detect_positive count_include_pad unidirectional relu
    """.split()
)
TEXTS = {
    "mode": ("constant", "reflect", "edge", "wrap"),
    "approximate": ("none", "tanh"),
    "direction": ("LEFT", "RIGHT"),
    "to": (*FLOATS, *INTEGERS, "bool"),
    "dtype": (*FLOATS, *INTEGERS),
}


def _draw_attributes(
    node: Node,
    operands: Sequence[Node],
    names: dict[str, Any],
    given: Mapping[str, Any],
    rng: Random,
    keep: bool,
    plain: bool,
) -> None:
    """Values for the attribute names of one operator that are not bound yet, which fit its operands
    more often than not."""
    op = get(node.op)
    shape = operands[0].shape if operands and _typed(operands[0]) else ()
    known: dict[str, Any] = {}
    rest = next((v.source for k, v in node.attrs if k == REST), None)
    wanted = {k: v for k, v in node.attrs if k != REST}
    for key, value in wanted.items():
        if not isinstance(value, Expr):
            known[key] = value
        elif value.name is not None and value.name in names:
            known[key] = names[value.name]
        elif value.name is None:
            tree = ast.parse(value.source, mode="eval").body
            known[key] = _try(tree, names)
            if known[key] is None:  # a name that another operator says: an axis
                for name in sorted(free_names(value.source) - names.keys()):
                    names[name] = given.get(name, rng.randrange(max(len(shape), 1)))
                known[key] = _try(tree, names)
    kept = dict(given.get(rest, ())) if rest is not None else {}
    if rest is not None and rest in names:
        known |= dict(names[rest])
    order = [k for k in ("axes", "axis", "steps", "starts") if k in op.attributes]
    order += [k for k in op.attributes if k not in order]
    for key in order:
        if key in known:
            continue
        value = wanted.get(key)
        if value is None and rest is None:
            continue
        seed = given.get(value.name) if value is not None else kept.get(key)
        if keep or (value is None and rng.random() < 0.6):
            drawn = seed
        else:
            drawn = _attribute(node.op, key, seed, shape, known, rng, plain)
        known[key] = drawn
        if value is not None:
            names[value.name] = drawn
    if rest is not None and rest not in names:
        names[rest] = tuple(sorted((k, known[k]) for k in op.attributes if k not in wanted))


def _attribute(
    op: str, key: str, seed: Any, shape: Sequence[int], known: Mapping[str, Any], rng: Random, plain: bool
) -> Any:
    rank = len(shape)
    if key in FLAGS:
        return rng.randint(0, 1)
    if key == "mode" and op in ("depth_to_space", "space_to_depth"):
        return rng.choice(("DCR", "CRD"))
    if key in TEXTS:
        return seed if rng.random() < 0.4 else rng.choice(TEXTS[key])
    if key == "axis":
        low = 0 if plain else -rank
        return rng.randint(low if rng.random() < 0.3 else 0, max(rank - 1, 0))
    if key == "axes":
        room = rank + (len(seed or ()) or 1) if op == "unsqueeze" else rank
        count = len(seed) if seed is not None and rng.random() < 0.6 else rng.randint(1, max(room, 1))
        return tuple(sorted(rng.sample(range(room), min(count, room))))
    if key == "perm":
        return tuple(rng.sample(range(rank), rank))
    if key == "steps":
        return tuple(rng.choice((1, 1, 1, 2, -1, -2)) for _ in known.get("axes") or ())
    if key in ("starts", "ends"):
        return _bounds(key, shape, known, rng)
    if key == "pads":
        return _pads(op, seed, rank, rng)
    if key == "repeats":
        return tuple(rng.choice((1, 1, 2, 3)) for _ in range(rank))
    if key == "factors":
        return tuple(rng.choice((1, 1, 2)) for _ in range(rank))
    if key == "split":
        count = len(seed) if seed and rng.random() < 0.7 else rng.randint(1, 4)
        return _composition(shape, known.get("axis"), count, rng)
    if key == "shape":
        return _shape(op, seed, shape, rng)
    if key in ("kernel", "strides", "dilations"):
        return tuple(rng.choice((1, 1, 2, 3) if key == "kernel" else (1, 1, 2)) for _ in seed or ())
    if key in ("epsilon",):
        return rng.choice((seed, 1e-5, 0.1, 1.0))
    if isinstance(seed, float):
        return rng.choice((number("float32", rng), number("float32", rng), seed, -seed, 0.0, 1.0))
    if key in ("k", "start", "index"):
        return rng.randint(-2, 2)
    if isinstance(seed, int) and not isinstance(seed, bool):
        return rng.choice((seed, seed, 1, 2, 3, 4))
    return seed


def _bounds(key: str, shape: Sequence[int], known: Mapping[str, Any], rng: Random) -> tuple[int, ...]:
    axes = known.get("axes") or ()
    steps = known.get("steps") or (1,) * len(axes)
    starts = known.get("starts")
    found = []
    for i, axis in enumerate(axes):
        n = shape[axis] if -len(shape) <= axis < len(shape) else 1
        forward = i >= len(steps) or steps[i] > 0
        if key == "starts":
            found.append(
                rng.choice((0, rng.randint(0, n - 1))) if forward else rng.choice((n - 1, rng.randint(0, n - 1)))
            )
        else:
            start = starts[i] if starts and i < len(starts) else 0
            found.append(rng.choice((n, rng.randint(min(start + 1, n), n))) if forward else rng.randint(-1, start - 1))
    return tuple(found)


def _pads(op: str, seed: Any, rank: int, rng: Random) -> tuple[int, ...]:
    if op != "pad":
        return tuple(rng.choice((0, 0, 1, 1, 2)) for _ in seed or ())
    sign = rng.choice(((0, 1, 2), (0, 0, 1), (-1, 0), (-2, -1, 0, 1, 2)))
    return tuple(rng.choice(sign) for _ in range(2 * rank))


def _composition(shape: Sequence[int], axis: Any, count: int, rng: Random) -> tuple[int, ...]:
    if not isinstance(axis, int) or not -len(shape) <= axis < len(shape):
        return (1,) * count
    n = shape[axis]
    if n >= count and n % count == 0 and rng.random() < 0.3:
        return (n // count,) * count
    cuts = sorted(rng.sample(range(1, n), min(count, n) - 1))
    return tuple(b - a for a, b in zip((0, *cuts), (*cuts, n), strict=True))


def _shape(op: str, seed: Any, shape: Sequence[int], rng: Random) -> tuple[int, ...]:
    if op == "expand":
        lead = tuple(rng.choice((1, 2, 3)) for _ in range(rng.choice((0, 0, 1, 2))))
        return lead + tuple(rng.choice((1, 2, 3)) if n == 1 else n for n in shape)
    if op != "reshape":
        return tuple(rng.choice((1, 2, 3)) for _ in seed or (1,))
    whole = math.prod(shape)
    result = list(shape)
    if rng.random() < 0.2:
        rng.shuffle(result)
    for _ in range(rng.choice((0, 1, 1, 2))):
        if result and rng.random() < 0.5:
            i = rng.randrange(len(result))
            factor = rng.choice([d for d in range(1, result[i] + 1) if result[i] % d == 0])
            result[i : i + 1] = [factor, result[i] // factor]
        elif len(result) > 1:
            i = rng.randrange(len(result) - 1)
            result[i : i + 2] = [result[i] * result[i + 1]]
    if seed and rng.random() < 0.3 and len(seed) > 1:  # as many dims as the seed's
        parts: list[int] = []
        left = whole
        for _ in range(len(seed) - 1):
            parts.append(rng.choice([d for d in range(1, left + 1) if left % d == 0]))
            left //= parts[-1]
        result = [*parts, left]
    return tuple(result)


# ---------------------------------------------------------------- values


class _Numbers(Reals):
    """Floats of one length for all; integers as they are."""

    def __init__(self, wide: Any) -> None:
        super().__init__(exact=True)
        self.wide = np.dtype(wide)

    def load(self, array: Array) -> Array:
        return array.astype(self.wide) if is_float(array.dtype.name) else array

    def dtype(self, a: Array) -> str:
        return "float64" if a.dtype == self.wide else a.dtype.name

    def iota(self, n: Any, dtype: str = "int64") -> Array:
        return np.arange(int(n), dtype=self.wide if is_float(dtype) else numpy_dtype(dtype))

    def cast(self, a: Array, dtype: str) -> Array:
        if is_float(dtype):
            return a.astype(self.wide)
        with np.errstate(all="ignore"):
            return a.astype(numpy_dtype(dtype))


DOUBLE, LONG = _Numbers(np.float64), _Numbers(np.longdouble)


class Undefined(Exception):
    """ONNX does not define the result."""


def evaluate(outputs: Sequence[Node], env: Mapping[Node, Array], xp: _Numbers) -> dict[Node, Any]:
    """Every term's value.

    Undefined where ONNX leaves the result open; floats that are not finite show in the values.
    """
    values: dict[Node, Any] = {n: xp.load(a) for n, a in env.items()}
    order = topological(outputs, stop=values.keys())
    rounds = not any(k == "stash_type" for n in order for k, _ in n.attrs)  # such operators round inside, unseen here
    for node in order:
        if node is ABSENT:
            continue
        args = [None if a is ABSENT else values[a] for a in node.args]
        if node.op in ("cast", "cast_like"):
            values[node] = _cast(args[0], node.args[0].dtype, node.dtype, xp, rounds)
        else:
            _check(node, args)
            quotient = node.op == "div" and args[1].dtype.kind in "iu"
            values[node] = _quotient(*args) if quotient else interpret_term(node, xp, args)
    return values


def _cast(a: Array, source: str, target: str, xp: _Numbers, rounds: bool) -> Array:
    if source == target:
        return a
    if is_float(target):
        kept = is_float(source) and (not rounds or np.can_cast(numpy_dtype(source), numpy_dtype(target)))
        with np.errstate(all="ignore"):
            return a.astype(xp.wide) if kept else a.astype(numpy_dtype(target)).astype(xp.wide)
    if is_float(source) and target != "bool":
        info = np.iinfo(target)
        whole = np.trunc(a)
        if not np.isfinite(a).all() or (whole < int(info.min)).any() or (whole >= int(info.max) + 1).any():
            raise Undefined(f"a float out of the range of {target}")
    with np.errstate(all="ignore"):
        return a.astype(numpy_dtype(target))


def _quotient(a: Array, b: Array) -> Array:
    """Integers divide towards zero."""
    below = np.floor_divide(a, b)
    return np.asarray(below + ((below < 0) & (below * b != a)), a.dtype)


def _check(node: Node, args: Sequence[Any]) -> None:
    if node.op in ("div", "mod") and args[1].dtype.kind in "iu":
        if (args[1] == 0).any():
            raise Undefined("an integer divided by 0")
        if args[0].dtype.kind == "i" and (args[0] == np.iinfo(args[0].dtype).min).any() and (args[1] == -1).any():
            raise Undefined("the least integer divided by -1")
    if node.op == "bit_shift" and ((args[1] < 0) | (args[1] >= args[1].dtype.itemsize * 8)).any():
        raise Undefined("a shift by more bits than there are, or by less than none")
    if (
        node.op == "pow"
        and args[0].dtype.kind in "iu"
        and (
            (np.abs(args[1].astype(float)) > 6).any()
            or (np.abs(args[0].astype(float)) > 9).any()
            or (args[1] < 0).any()
        )
    ):
        raise Undefined("a large power of an integer")


def compare(
    equation: Equation,
    lhs: tuple[Node, ...],
    rhs: tuple[Node, ...],
    names: Mapping[str, Any],
    rng: Random,
    numbers: np.random.Generator,
) -> Counterexample | bool | None:
    """One run on random inputs: a counterexample, True where the sides agree, None where there is
    nothing to compare."""
    terms = topological((*lhs, *rhs))
    ops = {n.op for n in terms}
    env = inputs([n for n in terms if n.op in ("input", "weight")], ops, rng, numbers)
    try:
        with np.errstate(all="ignore"):
            values = evaluate((*lhs, *rhs), env, DOUBLE)
    except (Undefined, *ILLEGAL):
        return None
    if _unsafe(terms, values, ops):
        return None
    tolerance = _tolerance(equation, terms)
    for k, (left, right) in enumerate(zip(lhs, rhs, strict=True)):
        for a, b in _parts(values[left], values[right]):
            apart = _apart(a, b, tolerance)
            if apart.any() and _confirmed(lhs, rhs, k, env, values, apart, ops, tolerance, numbers):
                index = tuple(int(i) for i in np.argwhere(apart)[0])
                return _counterexample(names, env, k, index, a, b, lhs, rhs)
    return True


def _parts(a: Any, b: Any) -> Iterator[tuple[Array, Array]]:
    if isinstance(a, tuple):
        yield from zip(a, b, strict=True)
    else:
        yield a, b


def _apart(a: Array, b: Array, tolerance: float) -> Array:
    if a.shape != b.shape:
        return np.ones(a.shape, bool)
    if a.dtype.kind != "f":
        return np.asarray(a != b)
    with np.errstate(all="ignore"):
        far = np.abs(a - b) > tolerance * np.maximum(np.maximum(np.abs(a), np.abs(b)), 1e-9)
    return np.asarray(far & np.isfinite(a) & np.isfinite(b))


def _unsafe(terms: Sequence[Node], values: Mapping[Node, Any], ops: set[str]) -> bool:
    """Whether an infinity arose, or no number where something chooses by comparing: nothing is
    claimed there."""
    chooses = bool(ops & (JUMPS | {"max", "min", "relu", "clip", "reduce_max", "reduce_min", "max_pool"}))
    for node in terms:
        value = values.get(node)
        if node.op == "constant" or not isinstance(value, np.ndarray) or value.dtype.kind != "f":
            continue
        if not np.isfinite(value).all() and (chooses or np.isinf(value).any()):
            return True
    return False


def _tolerance(equation: Equation, terms: Sequence[Node]) -> float:
    """Constants that the dtype cannot hold are rounded; a guard may say `close`."""
    if equation.where is not None and "close(" in equation.where.source:
        return 1e-4
    worst = 1e-9
    dtypes = {n.dtype for n in terms if _typed(n) and is_float(n.dtype)}
    numbers = {n.attr("value") for side in (equation.lhs, equation.rhs) for n in side if n.op == "splat"}
    texts = {v for n in terms for _, v in n.attrs if isinstance(v, float)}
    if any(math.isfinite(v) and float(np.float32(v)) != v for v in texts):
        worst = 1e-6  # ONNX keeps attributes in single precision
    for dtype in dtypes:
        kind = numpy_dtype(dtype)
        if any(math.isfinite(v) and float(np.asarray(v).astype(kind)) != v for v in (*numbers, *texts)):
            worst = max(worst, {"float64": 1e-9, "float32": 1e-5, "float16": 0.05, "bfloat16": 0.2}[dtype])
    rounded = any(math.isfinite(v) and float(np.float32(v)) == v and (math.frexp(v)[0] * 2**16) % 1 for v in numbers)
    return max(worst, 1e-5) if rounded else worst  # the root of a half in single precision


def _confirmed(
    lhs: tuple[Node, ...],
    rhs: tuple[Node, ...],
    k: int,
    env: Mapping[Node, Array],
    values: Mapping[Node, Any],
    apart: Array,
    ops: set[str],
    tolerance: float,
    numbers: np.random.Generator,
) -> bool:
    """Whether it is no rounding: in longer numbers the sides are as far apart, and where something
    jumps, beside it too."""
    with np.errstate(all="ignore"):
        long = evaluate((*lhs, *rhs), env, LONG)
    for (a, b), (c, d) in zip(_parts(values[lhs[k]], values[rhs[k]]), _parts(long[lhs[k]], long[rhs[k]]), strict=True):
        if a.shape != apart.shape:
            continue
        if a.dtype.kind == "f":
            noise = np.abs(a - c) + np.abs(b - d)
            if not ((np.abs(a - b) > 1e4 * noise) & apart).any():
                return False
        elif not ((c != d) & apart).any():
            return False
    if not (ops & JUMPS) or not any(is_float(n.dtype) for n in (*env, *lhs, *rhs) if _typed(n)):
        inner = [n for n in topological((*lhs, *rhs)) if _typed(n) and is_float(n.dtype)]
        if not (ops & JUMPS) or not inner:
            return True
    if ops - {"input", "weight", "absent"} <= RATIONAL and _exact(values, long):
        return True
    for _ in range(3):
        beside = {n: _beside(n, a, numbers) for n, a in env.items()}
        try:
            with np.errstate(all="ignore"):
                again = evaluate((*lhs, *rhs), beside, DOUBLE)
        except (Undefined, *ILLEGAL):
            return False
        if not any(
            (_apart(a, b, tolerance) & apart).any()
            for a, b in _parts(again[lhs[k]], again[rhs[k]])
            if a.shape == apart.shape
        ):
            return False
    return any(not np.array_equal(_beside(n, a, numbers), a) for n, a in env.items())


def _exact(values: Mapping[Node, Any], long: Mapping[Node, Any]) -> bool:
    return all(
        np.array_equal(v, long[n]) for n, v in values.items() if isinstance(v, np.ndarray) and v.dtype.kind == "f"
    )


def _beside(node: Node, array: Array, numbers: np.random.Generator) -> Array:
    """Floats a few units of the last place of their dtype away."""
    if not is_float(node.dtype):
        return array
    eps = {"float64": 1e-7, "float32": 1e-6}.get(node.dtype, 2e-2)
    moved = array.astype(np.float64) * (1 + eps * numbers.uniform(-1, 1, array.shape))
    return moved.astype(numpy_dtype(node.dtype))


def inputs(leaves: Sequence[Node], ops: set[str], rng: Random, numbers: np.random.Generator) -> dict[Node, Array]:
    """Arrays for the leaves, in their own dtypes."""
    tame = bool(ops & SATURATING)
    kinds = ["unit", "wide", "positive", "whole", "whole", "halves", "small"]
    if not tame:
        kinds += ["large", "large"]
    elif ops & JUMPS:
        kinds = ["unit", "positive", "small"]
    if ops & {"cast", "cast_like"}:
        kinds += ["any"]
    kind = rng.choice(kinds)
    integer = rng.choice(("small", "small", "any", "middle", "extreme", "extreme", "index", "ones"))
    return {n: _array(n, kind, integer, rng, numbers) for n in leaves}


def _array(node: Node, kind: str, integer: str, rng: Random, numbers: np.random.Generator) -> Array:
    shape = tuple(int(n) for n in node.shape)
    dtype = numpy_dtype(node.dtype)
    if node.dtype == "bool":
        return numbers.integers(0, 2, shape).astype(bool)
    if not is_float(node.dtype):
        info = np.iinfo(dtype)
        low, high = int(info.min), int(info.max)
        if integer == "extreme":
            choices = [low, low + 1, high - 1, high, 0, 1, *([-1] if low < 0 else [])]
            picked = [choices[i] for i in numbers.integers(0, len(choices), math.prod(shape))]
            return np.array(picked, dtype).reshape(shape)
        if integer == "middle":
            magnitude = 2.0 ** numbers.uniform(0, info.bits - 1, shape)
            return (np.where(numbers.random(shape) < 0.5, -1 if low < 0 else 1, 1) * magnitude).astype(dtype)
        bounds = {"small": (max(low, -3), 4), "any": (low, high), "index": (0, 2), "ones": (1, 4)}[integer]
        return numbers.integers(*bounds, size=shape, dtype=dtype)
    if kind == "any":
        array = numbers.choice([-1.0, 1.0], shape) * 10.0 ** numbers.uniform(-9, 6, shape)
    else:
        array = {
            "unit": lambda: numbers.uniform(-1, 1, shape),
            "wide": lambda: numbers.normal(0, 3, shape),
            "positive": lambda: numbers.uniform(0.1, 3, shape),
            "whole": lambda: numbers.integers(-3, 4, shape).astype(float),
            "halves": lambda: numbers.integers(-7, 8, shape) / 2,
            "small": lambda: numbers.uniform(-0.2, 0.2, shape),
            "large": lambda: numbers.uniform(-100, 100, shape),
        }[kind]()
    limit = 60000.0 if node.dtype == "float16" else 1e30
    return np.clip(np.asarray(array, np.float64), -limit, limit).astype(dtype)


def _counterexample(
    names: Mapping[str, Any],
    env: Mapping[Node, Array],
    k: int,
    index: tuple[int, ...],
    a: Array,
    b: Array,
    lhs: tuple[Node, ...],
    rhs: tuple[Node, ...],
) -> Counterexample:
    types = {n: str(v.type) for n, v in names.items() if isinstance(v, Node)}
    values = {n: v.attr("value").numpy() for n, v in names.items() if isinstance(v, Node) and v.op == "constant"}
    values |= {str(n.attr("name")): x for n, x in env.items()}
    attributes = {n: v for n, v in names.items() if not isinstance(v, Node | Literal)}
    return Counterexample(types, attributes, values, k, index, a, b, lhs, rhs, dict(env))
