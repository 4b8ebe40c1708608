"""Graphs, laws and equations as text in Python syntax: every printed text parses back.

Read with `ast`, never executed.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Mapping
from dataclasses import astuple, dataclass, fields, replace
from functools import cache
from textwrap import indent
from typing import Any

import numpy as np

from taso_mirage.errors import SyntaxProblem
from taso_mirage.ir.content import Draw, NodeContent
from taso_mirage.ir.dims import Dim, Symbolic, parse_dim
from taso_mirage.ir.terms import ABSENT, Graph, Literal, Node, Tensor, Type, numpy_dtype, topological, variable
from taso_mirage.operators.expressions import EXPRESSION_FUNCTIONS, Expr
from taso_mirage.operators.ops import Op, get, load_specs
from taso_mirage.plugins import Plugin
from taso_mirage.rewriting.equation import Equation
from taso_mirage.rewriting.optional_operands import law_parts, law_variants
from taso_mirage.rewriting.patterns import REST

# ---------------------------------------------------------------- graphs


FUNCTIONS = frozenset({"body", "prologue"})
"""Attributes that are functions of elements; one that a term lacks is not written."""


def show_graph(graph: Graph, name: str = "graph", names: Mapping[Node, str] | None = None, short: bool = False) -> str:
    """A graph as a Python function, one term a line; the bodies of its kernels are functions inside
    it.

    `parse_graph` reads it back. A node without a definition reads back where its content is a
    value (`onnx_io.opened`), and not where it is an ONNX node. `names`: identifiers of all terms,
    each of one term; they are numbered if left out. `short`: an array of equal elements is
    written as one of them.
    """
    shown = {node: f"x{i}" for i, node in enumerate(graph.inputs)} if names is None else dict(names)
    bodies: dict[Graph, str] = {}
    inputs = ", ".join(f"{shown[n]}: input({n.attr('name')!r}, {_show_type(n.tensor)})" for n in graph.inputs)
    lines = [f"def {name}({inputs}):"]
    seen = set(graph.inputs)
    for node in topological(graph.outputs):
        if node in seen:
            continue
        seen.add(node)
        if node is ABSENT:
            shown[node] = "None"
            continue
        for body in (value for _, value in node.attrs if isinstance(value, Graph) and value not in bodies):
            bodies[body] = f"body{len(bodies)}"
            lines += indent(show_graph(body, bodies[body]), "    ").splitlines()
        if names is None:
            shown[node] = f"v{len(seen) - len(graph.inputs) - 1 - (ABSENT in seen)}"
        lines.append(f"    {shown[node]} = {_show_term(node, [shown[a] for a in node.args], bodies, short)}")
    lines.append(f"    return {', '.join(shown[o] for o in graph.outputs)}")
    return "\n".join(lines) + "\n"


def _show_term(node: Node, args: list[str], bodies: Mapping[Graph, str], short: bool = False) -> str:
    if node.op in ("weight", "input"):
        return f"{node.op}({node.attr('name')!r}, {_show_type(node.tensor)})"
    given = [(k, v) for k, v in node.attrs if v is not None or k not in FUNCTIONS]
    attrs = [f"{k}={bodies[v] if isinstance(v, Graph) else _show_value(v, short)}" for k, v in given]
    if node.op == "opaque":
        attrs.append(f"type={_show_types(node.type)}")
    return f"{node.op}({', '.join([*args, *attrs])})"


def _show_types(type: Type) -> str:
    if type is None or isinstance(type, Tensor):
        return "None" if type is None else _show_type(type)
    return f"({''.join(f'{_show_type(each)}, ' for each in type)})"


def _show_type(type: Tensor) -> str:
    if not type.dtype.isidentifier():
        return f"unknown({type.dtype!r}{'' if type.shape is None else f', {_show_value(type.shape)}'})"
    if type.shape is None:
        return f"{type.dtype}[...]"
    return f"{type.dtype}[{', '.join(_show_value(n) for n in type.shape) or '()'}]"


def _show_value(value: Any, short: bool = False) -> str:
    if isinstance(value, Symbolic):
        return repr(str(value)) if str(value).isidentifier() else f"dim({str(value)!r})"
    if isinstance(value, tuple):
        return "(" + ", ".join(map(_show_value, value)) + ("," if len(value) == 1 else "") + ")"
    if isinstance(value, NodeContent):
        parts = (value.operator, value.digest, value.bodies, None if value.draw is None else astuple(value.draw))
        return f"content({', '.join(map(_show_value, parts))})"
    if isinstance(value, Literal):
        array = value.numpy()
        flat = array.astype(np.float64).ravel().tolist() if array.dtype.kind in "fV" else array.ravel().tolist()
        item = len(value.data) // max(len(flat), 1)
        equal = short and len(flat) > 1 and value.data == value.data[:item] * len(flat)
        return f"array({value.dtype!r}, {value.shape!r}, {flat[0] if equal else flat!r})"
    return repr(value)


def parse_graph(text: str) -> Graph:
    """Parse the output of `show_graph`. Raises SyntaxProblem with the line."""
    return next(iter(parse_graphs(text).values()))


def parse_graphs(text: str) -> dict[str, Graph]:
    """Read several graphs that `show_graph` prints, by their names. Raises SyntaxProblem with the
    line."""
    try:
        functions = ast.parse(text).body
    except SyntaxError as error:
        raise SyntaxProblem(f"line {error.lineno}: {error.msg}") from None
    found = {each.name: _function(each) for each in functions if isinstance(each, ast.FunctionDef)}
    if not found or len(found) < len(functions):
        raise SyntaxProblem("a graph is written as `def graph(...):`")
    return found


def _function(function: ast.FunctionDef) -> Graph:
    env: dict[str, Node] = {}
    bodies: dict[str, Graph] = {}
    for argument in function.args.args:
        if argument.annotation is None:
            raise SyntaxProblem(f"the input {argument.arg} has no type")
        env[argument.arg] = _graph_term(argument.annotation, env, bodies)
    inputs = tuple(env.values())
    for statement in function.body:
        match statement:
            case ast.FunctionDef(name=name):
                bodies[name] = _function(statement)
                if any(node.op == "opaque" for node in bodies[name]):
                    raise SyntaxProblem(f"line {statement.lineno}: the body {name} has a node without a definition")
            case ast.Assign(targets=[ast.Name(id=name)], value=value):
                env[name] = _graph_term(value, env, bodies)
            case ast.Return(value=ast.Tuple(elts=elements)):
                return Graph(inputs, tuple(_graph_term(e, env, bodies) for e in elements))
            case ast.Return(value=value) if value is not None:
                return Graph(inputs, (_graph_term(value, env, bodies),))
            case _:
                raise SyntaxProblem(f"line {statement.lineno}: {ast.unparse(statement)}")
    raise SyntaxProblem("the graph returns nothing")


def _graph_term(tree: ast.expr, env: Mapping[str, Node], bodies: Mapping[str, Graph]) -> Node:
    match tree:
        case ast.Constant(value=None):
            return ABSENT
        case ast.Name(id=name):
            if name not in env:
                raise SyntaxProblem(f"line {tree.lineno}: {name} is not defined")
            return env[name]
        case ast.Call(func=ast.Name(id="input" | "weight" as kind), args=[ast.Constant(value=str(name)), type]):
            return Node(kind, (), (("name", name),), parse_type(type))
        case ast.Call(
            func=ast.Name(id="opaque"), args=args, keywords=[ast.keyword("call", call), ast.keyword("type", type)]
        ):
            operands = tuple([_graph_term(a, env, bodies) for a in args])
            return Node("opaque", operands, (("call", _parse_content(call)),), _parse_types(type))
        case ast.Call(func=ast.Name(id=name), args=args, keywords=keywords):
            attrs = {k.arg or REST: _attribute(k.value, bodies) for k in keywords}
            return _operator(name).term(*[_graph_term(a, env, bodies) for a in args], **attrs)
    raise SyntaxProblem(f"line {tree.lineno}: {ast.unparse(tree)} is no term")


def _attribute(tree: ast.expr, bodies: Mapping[str, Graph]) -> Any:
    return bodies[tree.id] if isinstance(tree, ast.Name) and tree.id in bodies else parse_value(tree)


def _parse_types(tree: ast.expr) -> Type:
    match tree:
        case ast.Constant(value=None):
            return None
        case ast.Tuple(elts=elements):
            return tuple(map(parse_type, elements))
    return parse_type(tree)


def parse_type(tree: ast.expr | str) -> Tensor:
    """`float32[2, "batch"]`: a dtype and a shape."""
    if isinstance(tree, str):
        tree = ast.parse(tree, mode="eval").body
    match tree:
        case ast.Call(func=ast.Name(id="unknown"), args=[ast.Constant(value=str(name))]):
            return Tensor(name, None)
        case ast.Call(func=ast.Name(id="unknown"), args=[ast.Constant(value=str(name)), ast.Tuple(elts=elements)]):
            return Tensor(name, tuple(_parse_dim(e) for e in elements))
        case ast.Subscript(value=ast.Name(id=dtype), slice=ast.Constant(value=value)) if value is Ellipsis:
            return Tensor(dtype, None)
        case ast.Subscript(value=ast.Name(id=dtype), slice=ast.Tuple(elts=elements)):
            return Tensor(dtype, tuple(_parse_dim(e) for e in elements))
        case ast.Subscript(value=ast.Name(id=dtype), slice=element):
            return Tensor(dtype, (_parse_dim(element),))
        case ast.Name(id=dtype):
            return Tensor(dtype, ())
    raise SyntaxProblem(f"{ast.unparse(tree)} is no type; write float32[2, 3]")


def _parse_dim(tree: ast.expr) -> Dim:
    value = parse_value(tree)
    return parse_dim(value) if isinstance(value, str) else value


def parse_value(tree: ast.expr) -> Any:
    """A number, a text, None, inf, a dim, an array, or a tuple of these."""
    match tree:
        case ast.Constant(value=value):
            return value
        case ast.Name(id="inf" | "nan" as name):
            return float(name)
        case ast.UnaryOp(op=ast.USub(), operand=operand):
            return -parse_value(operand)
        case ast.Tuple(elts=elements) | ast.List(elts=elements):
            return tuple(parse_value(e) for e in elements)
        case ast.Call(func=ast.Name(id="dim"), args=[ast.Constant(value=str(text))]):
            return parse_dim(text)
        case ast.Call(func=ast.Name(id="array"), args=[dtype, shape, data]):
            values = np.array(parse_value(data), numpy_dtype(parse_value(dtype)))
            size = parse_value(shape)
            return Literal.of(np.full(size, values) if values.ndim == 0 else values.reshape(size))
    raise SyntaxProblem(f"line {tree.lineno}: {ast.unparse(tree)} is no value")


def _parse_content(tree: ast.expr) -> NodeContent:
    """`content(operator, digest, bodies, draw)`, each a value."""
    match tree:
        case ast.Call(func=ast.Name(id="content"), args=[operator, digest, bodies, draw]):
            drawn = parse_value(draw)
            if drawn is None or (isinstance(drawn, tuple) and len(drawn) == len(fields(Draw))):
                made = None if drawn is None else Draw(*drawn)
                return NodeContent(parse_value(operator), parse_value(digest), parse_value(bodies), made)
    raise SyntaxProblem(f"line {tree.lineno}: {ast.unparse(tree)} is no content of a node")


def _operator(name: str) -> Op:
    try:
        return get(name)
    except KeyError as error:
        raise SyntaxProblem(str(error.args[0])) from None


# ---------------------------------------------------------------- laws and equations


def parse_equation(text: str, name: str = "", evidence: str = "law") -> Equation:
    """Read `lhs == rhs  where guard`; a side is a term, or a tuple of terms for several outputs."""
    first, second, guard = law_parts(text)
    lhs, rhs = _side(first), _side(second)
    if len(lhs) != len(rhs):
        raise SyntaxProblem(f"{text!r}: {len(lhs)} outputs on the left, {len(rhs)} on the right")
    _check_kinds(text, (*lhs, *rhs))
    left = Graph(tuple(n for n in topological(lhs) if n.op == "input"), lhs)
    unnamed = " ".join(text.split()).partition(" where ")[0].strip()
    return Equation(name or unnamed, left, Graph(left.inputs, rhs), Expr(guard) if guard else None, evidence)


def _check_kinds(text: str, sides: tuple[Node, ...]) -> None:
    """Collect the names of operands and of attributes. Raises SyntaxProblem for a name that is
    both."""
    terms = topological(sides)
    operands = {n.attr("name") for n in terms if n.op == "input"}
    attributes = {v.name: (n.op, k) for n in terms for k, v in n.attrs if isinstance(v, Expr) and v.name}
    for name in sorted(operands & attributes.keys()):
        op, key = attributes[name]
        of = f"all other attributes of {op}" if key == REST else f"the attribute {key} of {op}"
        raise SyntaxProblem(
            f"{' '.join(text.split())!r}: {name} is an operand and {of}; write two names, or a number as the operand"
        )


def _side(tree: ast.expr) -> tuple[Node, ...]:
    elements = tree.elts if isinstance(tree, ast.Tuple) else [tree]
    return tuple(_pattern(e) for e in elements)


def _pattern(tree: ast.expr) -> Node:
    match tree:
        case ast.Constant(value=None):
            return ABSENT
        case ast.Constant(value=int() | float() as number):
            return Node("splat", (), (("value", float(number)),))
        case ast.UnaryOp(op=ast.USub(), operand=ast.Constant(value=int() | float() as number)):
            return Node("splat", (), (("value", -float(number)),))
        case ast.Name(id="inf"):
            return Node("splat", (), (("value", float("inf")),))
        case ast.Name(id=name):
            if name in EXPRESSION_FUNCTIONS:
                raise SyntaxProblem(f"{name} is a function of guards; call the variable something else")
            return variable(name)
        case ast.Call(func=ast.Name(id=name), args=args, keywords=keywords):
            return _pattern_term(name, args, keywords)
        case ast.Starred():
            raise SyntaxProblem(f"{ast.unparse(tree)}: only laws beside operators have optional operands, with a star")
    raise SyntaxProblem(f"{ast.unparse(tree)} is no term of a law")


def _pattern_term(name: str, args: list[ast.expr], keywords: list[ast.keyword]) -> Node:
    op = _operator(name)
    given = {k.arg: _pattern_value(k.value) for k in keywords if k.arg is not None}
    rest = [k.value for k in keywords if k.arg is None]
    if unknown := given.keys() - op.attributes.keys():
        raise SyntaxProblem(f"{name} has no attribute {sorted(unknown)[0]}")
    attrs = given if rest else op.normalise(given)
    pairs = [(k, attrs[k]) for k in op.attributes if k in attrs]
    pairs = [(k, v if isinstance(v, Expr) or v is None else op.attributes[k][0](v)) for k, v in pairs]
    pairs += [(REST, Expr(_source(v))) for v in rest]
    if not args and not rest:  # an interned term: it has its type, as in a graph
        return op.term(**dict(pairs))
    return Node(name, tuple(_pattern(a) for a in args), tuple(pairs))


def _pattern_value(tree: ast.expr) -> Any:
    if isinstance(tree, ast.Name) and tree.id not in ("inf", "nan"):
        return Expr(tree.id)
    try:
        return parse_value(tree)
    except SyntaxProblem:
        return Expr(ast.unparse(tree))


def _source(tree: ast.expr) -> str:
    """The text of an expression; most are names, for which `ast.unparse` would take most of the
    time of parsing."""
    return tree.id if isinstance(tree, ast.Name) else ast.unparse(tree)


def show_equation(equation: Equation) -> str:
    """`lhs == rhs where guard`, which `parse_equation` reads back."""
    guard = f" where {equation.where.source}" if equation.where else ""
    return f"{_show_side(equation.lhs.outputs)} == {_show_side(equation.rhs.outputs)}{guard}"


def _show_side(outputs: Iterable[Node]) -> str:
    shown = [_show_pattern(o) for o in outputs]
    return shown[0] if len(shown) == 1 else f"({', '.join(shown)})"


def _show_pattern(node: Node) -> str:
    if node.op == "input":
        return str(node.attr("name"))
    if node is ABSENT:
        return "None"
    if node.op == "splat":
        return repr(node.attr("value"))
    attrs = [f"**{v}" if k == REST else f"{k}={_show_value(v)}" for k, v in node.attrs]
    return f"{node.op}({', '.join([*map(_show_pattern, node.args), *attrs])})"


@dataclass(frozen=True, slots=True)
class StatedLaw:
    """A law of an operator, the typing in letters that stands below it ("" where none does), and
    the plug-in that states it."""

    equation: Equation
    typing: str
    plugin: Plugin | None


@cache
def stated_laws() -> Mapping[str, StatedLaw]:
    """Every law of every operator by name, in the order of the files.

    Numbers count equations: a law with optional operands takes two.
    """
    found: dict[str, StatedLaw] = {}
    for op in load_specs().values():
        texts = enumerate(op.law_texts)
        variants = [(i, each) for i, text in texts for each in law_variants(text, op.law_typings.get(i, ""))]
        for number, (i, variant) in enumerate(variants):
            equation = parse_equation(variant.text, f"{op.name}.{number}")
            equation = replace(equation, together=i in op.together, last=i in op.last, moving=i in op.moving)
            found[equation.name] = StatedLaw(equation, variant.typing, op.law_plugins.get(i))
    return found


@cache
def laws() -> tuple[Equation, ...]:
    """The equations of all laws."""
    return tuple(each.equation for each in stated_laws().values())


def law_typing(name: str) -> str:
    """The typing in letters below the law of that name; empty if there is none."""
    stated = stated_laws().get(name)
    return "" if stated is None else stated.typing
