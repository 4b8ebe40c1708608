"""Models with something wrong: fields, whole messages and bytes are changed, and an attacker's
values are planted."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from copy import deepcopy
from random import Random
from typing import Any

import onnx
from google.protobuf.descriptor import FieldDescriptor as Field
from google.protobuf.message import DecodeError, Message

from fuzz.seeds import contents, weight

INTS = (0, 1, -1, 2, 3, 7, 70, 255, -128, 2**31 - 1, -(2**31), 2**32, 2**40, 2**62, 2**63 - 1, -(2**63))
FLOATS = (0.0, -0.0, 1.0, -1.0, 1e-38, 1e38, float("inf"), float("-inf"), float("nan"), 1e-45)
TEXTS = (
    "",
    "x",
    "y",
    "../secret.bin",
    "/etc/passwd",
    "/dev/zero",
    "a\x1b[2J\x1b[31mb",
    "a\nb",
    "\u202eevil",
    "a" * 5000,
    "'''\"\"\"",
    "$(touch planted)",
    "%s%n{0}",
    "com.microsoft",
    "ai.onnx.ml",
    "taso_mirage",
    "9**9**9**9",
    "floor(a/0)",
    "Loop",
    "MatMul",
    "\x00",
    "?",
)
WIDTHS = {Field.CPPTYPE_INT32: (-(2**31), 2**31 - 1), Field.CPPTYPE_INT64: (-(2**63), 2**63 - 1)}
WIDTHS |= {Field.CPPTYPE_UINT32: (0, 2**32 - 1), Field.CPPTYPE_UINT64: (0, 2**64 - 1)}
WIDTHS |= {Field.CPPTYPE_ENUM: (-(2**31), 2**31 - 1)}


def hostile(seed: int) -> bytes:
    """The model of a seed."""
    random = Random(seed)
    content = random.choice(contents())
    kind = random.random()
    if kind < 0.1:
        return _bytes(content, random)
    model = onnx.load_from_string(content)
    if kind < 0.3:
        random.choice(PLANTED)(model, random)
    for _ in range(0 if kind < 0.2 else random.choice((1, 1, 1, 2, 4, 16))):
        with suppress(DecodeError):  # deeper than protobuf goes
            _change(random.choice(list(_messages(model))), model, random)
    return bytes(model.SerializeToString())


def _bytes(content: bytes, random: Random) -> bytes:
    found = bytearray(content)
    for _ in range(random.choice((1, 1, 4, 64))):
        at = random.randrange(len(found) or 1)
        match random.randrange(4):
            case 0:
                found[at : at + 1] = bytes([random.randrange(256)])
            case 1:
                del found[at : at + random.choice((1, 8, 100))]
            case 2:
                found[at:at] = random.randbytes(random.choice((1, 8, 100)))
            case _:
                found = found[: max(at, 1)]
    return bytes(found)


def _messages(message: Message) -> Iterator[Message]:
    yield message
    for field, value in message.ListFields():
        if field.cpp_type == Field.CPPTYPE_MESSAGE:
            for each in value if field.is_repeated else [value]:
                yield from _messages(each)


def _change(message: Message, model: onnx.ModelProto, random: Random) -> None:
    """Change the value of one field of a message, or add or remove one part."""
    fields = message.DESCRIPTOR.fields
    present = [field for field, _ in message.ListFields()]
    field = random.choice(present if present and random.random() < 0.8 else fields)
    if field.is_repeated:
        _change_repeated(getattr(message, field.name), field, model, random)
    elif field.cpp_type == Field.CPPTYPE_MESSAGE:
        same = [m for m in _messages(model) if m.DESCRIPTOR is field.message_type]
        if same and random.random() < 0.6:
            getattr(message, field.name).CopyFrom(deepcopy(random.choice(same)))
        else:
            message.ClearField(field.name)
    elif random.random() < 0.15:
        message.ClearField(field.name)
    else:
        setattr(message, field.name, _scalar(field, getattr(message, field.name), model, random))


def _change_repeated(values: Any, field: Any, model: onnx.ModelProto, random: Random) -> None:
    whole = field.cpp_type == Field.CPPTYPE_MESSAGE
    what = random.randrange(5)
    if what == 0 and len(values):
        del values[random.randrange(len(values))]
    elif what == 1 and len(values):
        values.append(deepcopy(random.choice(values)))
    elif what == 2 and len(values) > 1:
        kept = deepcopy(list(values))  # elements of a deleted list are gone
        random.shuffle(kept)
        del values[:]
        values.extend(kept)
    elif whole and len(values):
        _change(random.choice(values), model, random)
    elif whole:
        values.add()
    elif len(values) and what == 3:
        i = random.randrange(len(values))
        values[i] = _scalar(field, values[i], model, random)
    else:
        values.append(_scalar(field, None, model, random))


def _scalar(field: Any, now: Any, model: onnx.ModelProto, random: Random) -> Any:
    if field.cpp_type in WIDTHS:
        low, high = WIDTHS[field.cpp_type]
        near = [now + d for d in (-1, 1)] if isinstance(now, int) else []
        small = [*near, *range(25)] if field.cpp_type in (Field.CPPTYPE_INT32, Field.CPPTYPE_ENUM) else near
        found = min(max(random.choice([*INTS, *small]), low), high)
        return found if field.cpp_type != Field.CPPTYPE_ENUM else random.choice(field.enum_type.values).number
    if field.cpp_type in (Field.CPPTYPE_FLOAT, Field.CPPTYPE_DOUBLE):
        return random.choice(FLOATS)
    if field.cpp_type == Field.CPPTYPE_BOOL:
        return not now
    if field.type == Field.TYPE_BYTES:
        given = now or b""
        return random.choice((b"", given[:-1], given + b"\0", given[: len(given) // 2], random.randbytes(16)))
    names = [name for n in model.graph.node for name in (*n.input, *n.output, n.op_type)]
    return random.choice((*TEXTS, *names, *names))


# ---------------------------------------------------------------- attacks


def _tensors(message: Message) -> list[onnx.TensorProto]:
    return [m for m in _messages(message) if isinstance(m, onnx.TensorProto)]


def _external(model: onnx.ModelProto, random: Random) -> None:
    """Weights from a file that is not the model's."""
    for tensor in _tensors(model):
        if random.random() < 0.5:
            tensor.data_location = onnx.TensorProto.EXTERNAL
            where = random.choice(
                ("../secret.bin", "/etc/passwd", "secret.bin/../../secret.bin", "link", "", "/dev/zero")
            )
            entries = {"location": where, "offset": random.choice(("0", "-1", "x", str(2**63))), "length": "16"}
            del tensor.external_data[:]
            for key in random.sample(list(entries), random.randint(1, 3)):
                tensor.external_data.add(key=key, value=entries[key])


def _code(model: onnx.ModelProto, random: Random) -> None:
    """Kernels: code that would write a file when it is loaded."""
    name = random.choice(("k", "/tmp/planted", "../planted", 'a"b', "a\nb"))
    source = '#include <stdio.h>\n__attribute__((constructor)) static void f() { fclose(fopen("planted", "w")); }'
    model.metadata_props.add(key="taso_mirage.format", value=random.choice(("1", "7", "", "x")))
    model.metadata_props.add(key=f"taso_mirage.{random.choice(('cpp', 'cubin', 'triton', 'ptx'))}.{name}", value=source)
    model.opset_import.add(domain="taso_mirage", version=1)
    model.graph.node.add(op_type=name, domain="taso_mirage", input=["x"], output=["planted"])


def _doubling(model: onnx.ModelProto, random: Random) -> None:
    """Functions that expand exponentially, or call themselves."""
    depth = random.choice((3, 12, 40, 400))
    model.opset_import.add(domain="deep", version=1)
    for i in range(depth):
        f = model.functions.add(name=f"f{i}", domain="deep", input=["a"], output=["b"])
        f.opset_import.add(domain="deep", version=1)
        f.opset_import.add(domain="", version=18)
        inner = f"f{(i + 1) % depth}" if random.random() < 0.3 or i + 1 < depth else "Relu"
        f.node.add(op_type=inner, domain="deep" if inner != "Relu" else "", input=["a"], output=["c"])
        f.node.add(op_type=inner, domain="deep" if inner != "Relu" else "", input=["c"], output=["b"])
    model.graph.node.add(op_type="f0", domain="deep", input=["x"], output=["deep"])


def _sizes(model: onnx.ModelProto, random: Random) -> None:
    """Sizes that no machine has, or that are texts of arithmetic."""
    for each in [*model.graph.input, *model.graph.output]:
        for dim in each.type.tensor_type.shape.dim:
            if random.random() < 0.5:
                dim.dim_value = random.choice(INTS)
            else:
                dim.dim_param = random.choice((*TEXTS, "*".join(f"(a{i}+b{i})" for i in range(30)), "(" * 300))


def _rank(model: onnx.ModelProto, random: Random) -> None:
    for each in model.graph.input:
        for _ in range(70):
            each.type.tensor_type.shape.dim.add(dim_value=1)


def _loop(model: onnx.ModelProto, random: Random) -> None:
    """A loop of 2^40 turns."""
    for tensor in model.graph.initializer:
        if tensor.data_type == onnx.TensorProto.INT64 and len(tensor.raw_data) == 8:
            tensor.raw_data = random.choice((2**40, 2**62, -1)).to_bytes(8, "little", signed=True)


def _sparse(model: onnx.ModelProto, random: Random) -> None:
    sparse = model.graph.sparse_initializer.add(dims=[random.choice(INTS), 4])
    sparse.values.CopyFrom(weight("sparse", 2))
    sparse.indices.dims[:] = [2]
    sparse.indices.data_type = onnx.TensorProto.INT64
    sparse.indices.int64_data[:] = [random.choice(INTS), random.choice(INTS)]


def _names(model: onnx.ModelProto, random: Random) -> None:
    """One name for another, wherever it stands: names that are paths, or steer a terminal."""
    names = sorted({name for n in model.graph.node for name in (*n.input, *n.output) if name})
    new = {name: f"{random.choice(TEXTS)}{i}" for i, name in enumerate(names)}
    for n in model.graph.node:
        n.input[:] = [new.get(name, name) for name in n.input]
        n.output[:] = [new.get(name, name) for name in n.output]
        n.name = random.choice(TEXTS)
    for each in (*model.graph.input, *model.graph.output, *model.graph.initializer):
        each.name = new.get(each.name, each.name)


def _long(model: onnx.ModelProto, random: Random) -> None:
    """A chain of operators, or of branches in branches."""
    last = model.graph.node[-1].output[0]
    if random.random() < 0.5:
        for i in range(random.choice((200, 3000))):
            model.graph.node.add(op_type="Relu", input=[last if i == 0 else f"chain{i}"], output=[f"chain{i + 1}"])
        return
    graph = model.graph
    for i in range(random.choice((5, 40))):
        inner = graph.node.add(op_type="If", input=["c"], output=[f"if{i}"])
        attribute = inner.attribute.add(name="then_branch", type=onnx.AttributeProto.GRAPH)
        graph = attribute.g


PLANTED: tuple[Callable[[onnx.ModelProto, Random], None], ...] = (
    _external,
    _code,
    _doubling,
    _sizes,
    _rank,
    _loop,
    _sparse,
    _names,
    _long,
)
