"""Changed certificates and models, followed by `verify`: an accepted model computes the same in
ONNX Runtime, bit for bit, and has the same border."""

from __future__ import annotations

import copy
import json
import struct
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import onnx
from certified_models import models
from commandline import run
from onnx import helper, numpy_helper

from fuzz.generated.model import random_model
from fuzz.generated.running import feedable, feeds, near, session
from taso_mirage.ir.terms import Graph, Node, Tensor, constant, variable
from taso_mirage.onnx_io.files import from_memory
from taso_mirage.operators.ops import term
from taso_mirage.rewriting.text import show_graph

NAMES = tuple(name for name in models() if not name.startswith("type a") and name != "type strings")
DRAWN = 40
"""Random graphs among the models."""
Model = onnx.ModelProto


def certificate_case(seed: int, folder: Path) -> tuple[str, list[str]]:
    """One changed certificate, or model, or both."""
    from fuzz.judge import in_folder, ran

    random = Random(seed)
    with in_folder(folder, folder.parent / "cache") as seen:
        made = _certified(random, folder.parent / "certified")
        original, optimized = (onnx.load(made / name) for name in ("a.onnx", "b.onnx"))
        steps = json.loads((made / "c.json").read_text())
        given = copy.deepcopy((original, optimized, steps))
        kind = random.choice(("certificate", "certificate", "optimized", "optimized", "original", "forged", "forged"))
        what = CHANGES[kind](given, random)
        for model, name in zip(given, ("a.onnx", "b.onnx"), strict=False):
            onnx.save(model, folder / name)
        (folder / "c.json").write_text(json.dumps(given[2]))
        alone = [] if kind == "forged" else ["--no-run"]  # equalities over the reals do not decide it
        code, wrong = ran(["verify", "a.onnx", "b.onnx", "c.json", *alone])
        if code == "check":
            wrong = [w for w in wrong if not w.startswith("check: ")]
        if code == "done":
            found = _differences(given[0], given[1], optimized, loads=not alone)
            wrong += [f"{kind}, {what}: {each}" for each in found]
            wrong += [f"{kind}, {what}: {each} differs" for each in _borders(given[0], given[1])]
    return f"{kind} {code}", wrong + seen


def _certified(random: Random, folder: Path) -> Path:
    """A folder with a model, its optimized form, and the certificate; made once."""
    index = random.randrange(len(NAMES) + DRAWN)
    made = folder / str(index)
    if not (made / "c.json").exists():
        made.mkdir(parents=True, exist_ok=True)
        content = models()[NAMES[index]].SerializeToString() if index < len(NAMES) else random_model(index)
        (made / "a.onnx").write_bytes(content)
        options = ("--no-measure", "--kernels", "off", "--budget", "1", "-o", made / "b.onnx")
        run("optimize", made / "a.onnx", *options, "--certificate", made / "c.json")
    return made


# ---------------------------------------------------------------- the comparison


def _differences(original: Model, changed: Model, optimized: Model, loads: bool) -> Iterator[str]:
    """Differences of an accepted model from the accepted original, and from the file that the
    optimizer wrote, on numbers of all sizes; where the command has run it, it `loads`, too."""
    sessions: list[Any] = []
    try:
        sessions += [session(original)]
        sessions += [session(each) for each in (changed, optimized)]
    except Exception as error:
        if sessions and loads:  # an invalid original has no results to compare
            yield f"an accepted model does not load: {error}"
        return
    if not feedable(sessions[0]):
        return
    for fed in feeds(sessions[0]):
        found = []
        try:
            found += [sessions[0].run(None, fed)]
            found += [each.run(None, fed) for each in sessions[1:]]
        except Exception as error:
            if found and loads:
                yield f"an accepted model does not run: {error}"
            return
        first, second, third = found
        for i, (a, b, c) in enumerate(zip(first, second, third, strict=True)):
            if not near(a, b):
                yield f"output {i} is off: {_said(a)} against {_said(b)}"
            if not near(b, c):
                yield f"output {i} is not what the optimizer's is: {_said(b)} against {_said(c)}"


def _said(array: Any) -> str:
    return str(np.asarray(array).reshape(-1)[:4])


def _borders(original: Model, changed: Model) -> Iterator[str]:
    """Differences between the interfaces that a caller sees."""
    a, b = original.graph, changed.graph
    own = {t.name for t in a.initializer} if original.ir_version < 4 else set()
    other = {t.name for t in b.initializer} if changed.ir_version < 4 else set()
    ins = [[v for v in g.input if v.name not in taken] for g, taken in ((a, own), (b, other))]
    for what, first, second in (("an input", *ins), ("an output", a.output, b.output)):
        if [(v.name, v.type.SerializeToString()) for v in first] != [
            (v.name, v.type.SerializeToString()) for v in second
        ]:
            yield what
    stored = [{t.name: t for t in g.initializer} for g in (a, b)]
    for name in {v.name for v in ins[0]} | {v.name for v in ins[1]}:
        values = [numpy_helper.to_array(s[name]).tobytes() if name in s else None for s in stored]
        if values[0] != values[1]:
            yield f"the default of {name!r}"
    if {p.key: p.value for p in original.metadata_props} != {p.key: p.value for p in changed.metadata_props}:
        yield "metadata"


# ---------------------------------------------------------------- the changes


def _in_json(given: tuple[Model, Model, dict[str, Any]], random: Random) -> str:
    """Values of the certificate: numbers, texts, places, order."""
    said = []
    for _ in range(random.choice((1, 1, 2, 4))):
        holders = list(_holders(given[2]))
        holder = random.choice(holders)
        keys = list(holder) if isinstance(holder, dict) else list(range(len(holder)))
        if not keys:
            continue
        key = random.choice(keys)
        said.append(str(key))
        match random.randrange(7):
            case 0:
                holder[key] = _other(holder[key], random)
            case 1:
                del holder[key]
            case 2:
                donor = random.choice(holders)
                values = list(donor.values()) if isinstance(donor, dict) else donor
                holder[key] = copy.deepcopy(random.choice(values)) if values else None
            case 3 if isinstance(holder, list):
                random.shuffle(holder)
            case 4 if isinstance(holder, list):
                holder.insert(random.randrange(len(holder) + 1), copy.deepcopy(random.choice(holder)))
            case 5:
                for equality in (e for e in _holders(given[2]) if isinstance(e, dict) and "proof" in e):
                    equality["proof"] = random.choice(("symbolic", "bounded", "float check", "none", 1))
            case _:
                holder[key] = _other(holder[key], random)
    return " ".join(said)


def _holders(value: Any) -> Iterator[Any]:
    if isinstance(value, dict | list):
        yield value
        for each in value.values() if isinstance(value, dict) else value:
            yield from _holders(each)


def _other(value: Any, random: Random) -> Any:
    if isinstance(value, bool) or value is None:
        return random.choice((None, True, 0, "", []))
    if isinstance(value, int):
        return random.choice((value + 1, value - 1, 0, -1, 1 << 70, random.randrange(60)))
    if isinstance(value, str):
        words = ("add", "mul", "sub", "neg", "relu", "float32", "float64", "n", "0", "1", "2", "-1", "7", "x0", "x1")
        parts = value.split(" ")
        if len(parts) > 1 and random.random() < 0.7:
            parts[random.randrange(len(parts))] = random.choice((*words, *parts))
            return " ".join(parts)
        return value.replace(random.choice(words), random.choice(words))
    return random.choice((0, "x", [], {}, None, 1.5, float("nan")))


def _in_model(at: int) -> Callable[[tuple[Model, Model, dict[str, Any]], Random], str]:
    def change(given: tuple[Model, Model, dict[str, Any]], random: Random) -> str:
        kind = random.choice(MODEL_CHANGES)
        kind(given[at], random)
        return kind.__name__

    return change


def _parts(model: Model) -> list[Any]:
    """Graphs and functions with their bodies."""
    found, waiting = [], [model.graph, *model.functions]
    while waiting:
        part = waiting.pop()
        found.append(part)
        waiting += [a.g for n in part.node for a in n.attribute if a.HasField("g")]
    return found


def _node(model: Model, random: Random) -> Any:
    return random.choice([n for part in _parts(model) for n in part.node] or [onnx.NodeProto()])


def _bit(model: Model, random: Random) -> None:
    """One bit of one number of a weight, that of a NaN too."""
    tensors = [t for part in _parts(model) if hasattr(part, "initializer") for t in part.initializer]
    for tensor in random.sample(tensors, min(1, len(tensors))):
        content = bytearray(numpy_helper.to_array(tensor).tobytes())
        if content:
            content[random.randrange(len(content))] ^= 1 << random.randrange(8)
            tensor.ClearField("float_data")
            tensor.ClearField("int64_data")
            tensor.ClearField("int32_data")
            tensor.raw_data = bytes(content)


def _operands(model: Model, random: Random) -> None:
    node = _node(model, random)
    if len(node.input) > 1:
        order = list(node.input)
        random.shuffle(order)
        node.input[:] = order


def _attribute(model: Model, random: Random) -> None:
    node = _node(model, random)
    attributes = [a for a in node.attribute if not a.HasField("g")]
    if not attributes:
        node.attribute.append(helper.make_attribute(random.choice(("alpha", "axis", "epsilon", "keepdims")), 1))
        return
    attribute = random.choice(attributes)
    if attribute.type == onnx.AttributeProto.INT:
        attribute.i += random.choice((1, -1))
    elif attribute.type == onnx.AttributeProto.FLOAT:
        bits = struct.unpack("<I", struct.pack("<f", attribute.f))[0] ^ (1 << random.randrange(31))
        attribute.f = struct.unpack("<f", struct.pack("<I", bits))[0]
    elif attribute.ints:
        attribute.ints[random.randrange(len(attribute.ints))] += 1
    else:
        node.attribute.remove(attribute)


SAME_TYPE = "Relu Neg Abs Exp Sigmoid Tanh Elu LeakyRelu Selu Identity Hardmax Softmax Softsign".split()


def _operator(model: Model, random: Random) -> None:
    node = _node(model, random)
    node.op_type = random.choice(("Add Sub Mul Max Min" if len(node.input) == 2 else " ".join(SAME_TYPE)).split())


def _wiring(model: Model, random: Random) -> None:
    part = random.choice(_parts(model))
    if part.node:
        names = [o for n in part.node for o in n.output] + [i for n in part.node for i in n.input]
        node = random.choice(part.node)
        if node.input:
            node.input[random.randrange(len(node.input))] = random.choice(names)


def _default(model: Model, random: Random) -> None:
    """Change the default of an input, remove it, or add one."""
    stored = {t.name: t for t in model.graph.initializer}
    value = random.choice(model.graph.input)
    dims = [d.dim_value or 4 for d in value.type.tensor_type.shape.dim]
    if value.name in stored:
        model.graph.initializer.remove(stored[value.name])
    if value.name not in stored or random.random() < 0.5:
        dtype = helper.tensor_dtype_to_np_dtype(value.type.tensor_type.elem_type or 1)
        model.graph.initializer.append(numpy_helper.from_array(np.ones(dims, dtype), value.name))


def _border(model: Model, random: Random) -> None:
    graph = model.graph
    values = random.choice((graph.input, graph.output))
    value = random.choice(values)
    dims = value.type.tensor_type.shape.dim
    match random.randrange(7):
        case 0 if len(values) > 1:
            kept = list(values)[::-1]
            del values[:]
            values.extend(kept)
        case 1 if dims:
            dim = random.choice(dims)
            dim.dim_param, dim.dim_value = random.choice((("m", 0), ("", 5)))
            dim.ClearField("dim_param" if dim.dim_value else "dim_value")
        case 2:
            value.type.tensor_type.elem_type = random.choice((1, 7, 10, 11))
        case 3:
            values.append(copy.deepcopy(value))
        case 4 if len(values) > 1:
            values.remove(value)
        case 5 if dims:
            random.choice(dims).denotation = "BATCH"
        case _:
            model.metadata_props.add(key=f"k{random.randrange(3)}", value="v")


def _opset(model: Model, random: Random) -> None:
    random.choice(model.opset_import).version += random.choice((1, -1))


def _renamed(model: Model, random: Random) -> None:
    """Change texts without effect: names of nodes, documentation."""
    _node(model, random).name = "other"
    model.doc_string = "said"


MODEL_CHANGES = (_bit, _bit, _operands, _attribute, _attribute, _operator, _wiring, _default, _border,
    _border, _opset, _renamed)  # fmt: skip

NUMBERS = (0.0, 1.0, -1.0, 7.0, 1e30, 1e-30, 1e-7, 2.0**126, 65063.0)
SIDES: tuple[Callable[[Node, Node], Node], ...] = (
    lambda x, c: x,
    lambda x, c: term("add", x, c),
    lambda x, c: term("mul", x, c),
    lambda x, c: term("sub", term("add", x, c), c),
    lambda x, c: term("where", term("less", x, c), x, c),
    lambda x, c: term("where", term("equal", x, c), c, x),
    lambda x, c: term("max", x, c),
    lambda x, c: term("div", term("mul", x, c), c),
    lambda x, c: term("div", term("mul", x, x), x),
    lambda x, c: term("mul", x, term("div", x, x)),
    lambda x, c: term("exp", term("log", x)),
    lambda x, c: term("sqrt", term("mul", x, x)),
    lambda x, c: term("relu", x),
    lambda x, c: term("tanh", x),
    lambda x, c: term("add", x, term("sub", term("exp", x), term("exp", x))),
    lambda x, c: term("neg", term("neg", x)),
)
"""Terms of one operand and a number."""
WRITTEN: tuple[tuple[str, ...], ...] = (
    ("Mul x x", "Div 0 x"), ("Add x c", "Sub 0 c"), ("Mul x c", "Div 0 c"), ("Log x", "Exp 0"), ("Max x c",), ("Mul x x", "Sqrt 0"),
    ("Less x c", "Where 0 x c"), ("Exp x", "Exp x", "Sub 0 1", "Add x 2"), ("Neg x", "Neg 0"), ("Relu x",), ("Tanh x",),
)  # fmt: skip
"""The changes in nodes: they are put in front of a use of a value."""


def _forged(given: tuple[Model, Model, dict[str, Any]], random: Random) -> str:
    """A model with something in front of a value, and equalities that would allow it."""
    original, optimized, steps = given
    number = random.choice(NUMBERS)
    nodes = random.choice(WRITTEN)
    floats = [v.name for v in optimized.graph.input if v.type.tensor_type.elem_type == onnx.TensorProto.FLOAT]
    value = random.choice(floats) if floats else optimized.graph.input[0].name
    _put(optimized, value, nodes, number)
    tensors = [n.type for n in load_terms(original) if isinstance(n.type, Tensor)]
    types = [type for type in tensors if type.dtype == "float32" and type.shape is not None]
    for type in dict.fromkeys(types):
        x = variable("x0", type)
        for _ in range(3):
            sides = [random.choice(SIDES)(x, constant(number, "float32")) for _ in range(2)]
            if any(side.type != type for side in sides):
                continue
            texts = [show_graph(Graph((x,), (side,)), name) for side, name in zip(sides, ("lhs", "rhs"), strict=True)]
            proof = random.choice(("float check", "symbolic", "bounded"))
            steps["equalities"].append({"equations": ["forged"], "lhs": texts[0], "rhs": texts[1], "proof": proof})
            places = [i for i, t in enumerate(types) if t == type]
            for place in random.sample(range(40), 3) + places[:3]:
                at = random.choice((0, len(steps["records"])))
                steps["records"].insert(at, ["equal", len(steps["equalities"]) - 1, {"x0": place}])
    return f"forged {value} {nodes} {number}"


def load_terms(model: Model) -> list[Node]:
    """The terms of a model, in their order."""
    return from_memory(model).nodes()


def _put(model: Model, value: str, nodes: tuple[str, ...], number: float) -> None:
    """Nodes between a value and all that uses it."""
    model.graph.initializer.append(numpy_helper.from_array(np.float32(number), "forged_c"))
    names = {"x": value, "c": "forged_c"}
    made = []
    for i, text in enumerate(nodes):
        op, *operands = text.split()
        names[str(i)] = f"forged_{i}"
        made.append(helper.make_node(op, [names[o] for o in operands], [names[str(i)]]))
    last = made[-1].output[0]
    for node in model.graph.node:
        node.input[:] = [last if name == value else name for name in node.input]
    kept = list(model.graph.node)
    del model.graph.node[:]
    model.graph.node.extend([*made, *kept])


CHANGES: dict[str, Callable[[tuple[Model, Model, dict[str, Any]], Random], str]] = {
    "certificate": _in_json,
    "optimized": _in_model(1),
    "original": _in_model(0),
    "forged": _forged,
}
