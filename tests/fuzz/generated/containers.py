"""Strings, sequences, optionals, and trees: single operators on what is no tensor of numbers."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from fuzz.generated.graph import MACHINE_LEARNING, WORDS, Impossible, RandomGraph, dim
from fuzz.generated.operators import step
from fuzz.generated.values import FLOAT, INT64, OPTIONAL, SEQUENCE, STRING, TENSOR, Value


def word(g: RandomGraph) -> Value:
    found = [v for v in g.visible() if v.dtype == STRING and v.container == TENSOR and v.rank < 3]
    return g.choice(found) if found and g.chance(0.8) else g.given(STRING, g.choice(((), (3,), (2, 2))))


@step("StringConcat", "RegexFullMatch", "StringNormalizer", "StringSplit", "TfIdfVectorizer")
def texts(g: RandomGraph, op: str) -> Value:
    x = word(g)
    match op:
        case "StringConcat":
            return g.add(op, x, g.weight(STRING, ()))
        case "RegexFullMatch":
            return g.add(op, x, pattern=r"[a-z ]*")
        case "StringNormalizer":
            x = g.add("Cast", g.given(INT64, (3,)), to=STRING)
            return g.add(op, x, case_change_action=g.choice(("LOWER", "UPPER")), locale="C", shape=(3,))
        case "StringSplit":
            return g.all(op, x, outputs=2, delimiter=" ")[1]
    x = g.constant(g.numbers.integers(0, 4, (2, 4)))
    form = {"mode": "TF", "min_gram_length": 1, "max_gram_length": 2, "max_skip_count": 0}
    grams = {"ngram_counts": [0, 2], "ngram_indexes": [0, 1, 2], "pool_int64s": [1, 2, 1, 2]}
    return g.add(op, x, shape=(2, 3), bound=8.0, **form, **grams)


@step("Cast words")
def words_of_numbers(g: RandomGraph, op: str) -> Value:
    text = g.add("Cast", g.some(INT64), to=STRING)
    return g.add("Cast", text, to=INT64) if g.chance(0.5) else text


@step("ai.onnx.ml.LabelEncoder", "ai.onnx.ml.Scaler", "ai.onnx.ml.Normalizer", "ai.onnx.ml.LinearRegressor")
def learned(g: RandomGraph, op: str) -> Value:
    name = op.removeprefix("ai.onnx.ml.")
    if name == "LabelEncoder":
        x = word(g)
        made = Value("", INT64, x.shape, 3.0)
        form = {"keys_strings": [*WORDS[:3]], "values_int64s": [1, 2, 3], "default_int64": -1}
        return g.state(name, MACHINE_LEARNING, [x], made, **form)[0]
    x = g.bounded(g.ranked(2, dtypes=(FLOAT,), static=2))
    k = x.ints()[1]
    if name == "Scaler":
        form = {"offset": [0.5] * k, "scale": [2.0] * k}
        return g.state(name, MACHINE_LEARNING, [x], Value("", FLOAT, x.shape, 20.0, False), **form)[0]
    if name == "Normalizer":
        made = Value("", FLOAT, x.shape, 1.0, False)
        return g.state(name, MACHINE_LEARNING, [x], made, norm=g.choice(("MAX", "L1", "L2")))[0]
    made = Value("", FLOAT, (x.shape[0], 1), 30.0, False)
    return g.state(name, MACHINE_LEARNING, [x], made, coefficients=[0.5] * k, intercepts=[0.25], targets=1)[0]


# ---------------------------------------------------------------- sequences


def sequence(g: RandomGraph) -> Value:
    """A sequence that exists, or one of tensors of one type."""
    found = [v for v in g.visible() if v.container == SEQUENCE and v.length]
    if found and g.chance(0.6):
        return g.choice(found)
    x = g.some(g.dtype, INT64, STRING)
    same = [v for v in g.visible() if (v.container, v.dtype, v.shape) == (TENSOR, x.dtype, x.shape)]
    return construct(g, [g.choice([*same, x]) for _ in range(g.random.randint(1, 3))])


def construct(g: RandomGraph, parts: list[Value]) -> Value:
    made = g.add("SequenceConstruct", *parts, exact=True)
    return sized(g, made, len(parts), parts[0])


def sized(g: RandomGraph, made: Value, length: int, element: Value) -> Value:
    """A sequence with its length and the facts about its elements."""
    known = replace(made, length=length, shape=element.shape, exact=element.exact, bound=element.bound)
    g.values[g.values.index(made)] = known
    return known


@step("SequenceAt", "SequenceInsert", "SequenceErase", "SequenceLength", "ConcatFromSequence", "SplitToSequence")
def sequences(g: RandomGraph, op: str) -> Value:
    if op == "SplitToSequence":
        x = g.float(lambda v: v.rank > 0 and isinstance(v.shape[0], int) and v.shape[0] > 0)
        made = g.add(op, x, axis=0, keepdims=1, exact=True)
        return sized(g, made, dim(x, 0), replace(x, shape=(1, *x.shape[1:])))
    s = sequence(g)
    inner = replace(s, container=TENSOR)
    place = g.constant(np.array(g.random.randrange(-s.length, s.length)))
    match op:
        case "SequenceAt":
            return g.add(op, s, place, exact=True, shape=s.shape)
        case "SequenceInsert":
            x = g.some(s.dtype, where=lambda v: v.shape == s.shape)
            return sized(g, g.add(op, s, x, *([place] if g.chance(0.5) else [])), s.length + 1, inner)
        case "SequenceErase":
            return sized(g, g.add(op, s, *([place] if g.chance(0.5) else [])), s.length - 1, inner)
        case "SequenceLength":
            return g.add(op, s, bound=4.0)
    joined = (s.length * s.shape[0], *s.shape[1:]) if s.rank and isinstance(s.shape[0], int) else None
    if joined is None or g.chance(0.4):
        return g.add(op, s, axis=0, new_axis=1, shape=(s.length, *s.shape), exact=True)
    return g.add(op, s, axis=0, shape=joined, exact=True)


@step("SequenceEmpty")
def empty(g: RandomGraph, op: str) -> Value:
    x = g.some(g.dtype)
    made = g.add("SequenceInsert", g.add(op, dtype=x.dtype, shape=x.shape), x)
    return sized(g, made, 1, x)


@step("Optional", "OptionalHasElement", "OptionalGetElement")
def optionals(g: RandomGraph, op: str) -> Value:
    found = [v for v in g.visible() if v.container == OPTIONAL]
    if op == "Optional" or not found:
        if g.opset < 15:
            raise Impossible
        x = g.some(g.dtype, INT64)
        o = g.add("Optional", x, shape=x.shape, exact=True)
        o = sized(g, o, 1, x)
    else:
        o = g.choice(found)
    if op == "OptionalHasElement":
        return g.add(op, o)
    return g.add("OptionalGetElement", o, shape=o.shape, exact=True)
