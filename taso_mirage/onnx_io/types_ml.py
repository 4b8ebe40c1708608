"""Types of the operators of ONNX's domain for classical machine learning, of which no rank is
declared where scikit-learn's models are exported. A vector is one row."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from taso_mirage.errors import Unsupported
from taso_mirage.ir.dims import Dim
from taso_mirage.onnx_io.typed_nodes import AskedNode, Size, TypedOutput, TypeRules, resized_at

ML_TYPES = TypeRules("ai.onnx.ml")
FLOATS = "float32"
LABELS = {"string": "int64", "int64": "string"}
"""For each form of a category, the other form."""


def _rows(asked: AskedNode) -> Dim:
    shape = asked.shape(0)
    return shape[0] if len(shape) > 1 else 1


def _count(asked: AskedNode, *names: str) -> int:
    """How many elements the first attribute has that is there."""
    found = next((asked.attr(name) for name in names if asked.attr(name) is not None), ())
    return len(found)


@ML_TYPES("Scaler", "Normalizer")
def _(asked: AskedNode) -> Sequence[TypedOutput]:
    return [(FLOATS, asked.shape(0))]


@ML_TYPES("Imputer", "Binarizer")
def _(asked: AskedNode) -> Sequence[TypedOutput]:
    return [asked.like(0)]


@ML_TYPES("CategoryMapper")
def _(asked: AskedNode) -> Sequence[TypedOutput]:
    return [(LABELS[asked.dtype(0)], asked.shape(0))]


@ML_TYPES("LabelEncoder")
def _(asked: AskedNode) -> Sequence[TypedOutput]:
    named = {"values_strings": "string", "values_int64s": "int64", "values_floats": FLOATS}
    if asked.attr("values_tensor") is not None:
        raise Unsupported("values in a tensor")
    found = [dtype for name, dtype in named.items() if _count(asked, name)]
    return [(found[0] if found else LABELS[asked.dtype(0)], asked.shape(0))]


@ML_TYPES("OneHotEncoder")
def _(asked: AskedNode) -> Sequence[TypedOutput]:
    return [(FLOATS, (*asked.shape(0), _count(asked, "cats_int64s", "cats_strings")))]


@ML_TYPES("ArrayFeatureExtractor")
def _(asked: AskedNode) -> Sequence[TypedOutput]:
    dtype, shape = asked.like(0)
    taken: Size = prod(n if isinstance(n, int) else 0 for n in asked.shape(1)) or "taken"
    return [(dtype, resized_at(shape if len(shape) > 1 else (1, *shape), max(len(shape), 2) - 1, taken))]


@ML_TYPES("FeatureVectorizer")
def _(asked: AskedNode) -> Sequence[TypedOutput]:
    return [(FLOATS, (_rows(asked), sum(asked.attr("inputdimensions"))))]


@ML_TYPES("LinearRegressor")
def _(asked: AskedNode) -> Sequence[TypedOutput]:
    return [(FLOATS, (_rows(asked), int(asked.attr("targets", 1))))]


@ML_TYPES("TreeEnsembleRegressor")
def _(asked: AskedNode) -> Sequence[TypedOutput]:
    return [(FLOATS, (_rows(asked), int(asked.attr("n_targets", 1))))]


@ML_TYPES("TreeEnsemble")
def _(asked: AskedNode) -> Sequence[TypedOutput]:
    return [(asked.dtype(0), (_rows(asked), int(asked.attr("n_targets", 1))))]


@ML_TYPES("SVMRegressor")
def _(asked: AskedNode) -> Sequence[TypedOutput]:
    return [(FLOATS, (_rows(asked), 1))]


@ML_TYPES("LinearClassifier", "TreeEnsembleClassifier", "SVMClassifier")
def _(asked: AskedNode) -> Sequence[TypedOutput]:
    """Labels and scores: one for each class, or as many as a run gives."""
    labels = "string" if _count(asked, "classlabels_strings") else "int64"
    classes = _count(asked, "classlabels_strings", "classlabels_int64s", "classlabels_ints")
    scores: Size = classes if classes and asked.call.op_type != "SVMClassifier" else "scores"
    return [(labels, (_rows(asked),)), (FLOATS, (_rows(asked), scores))]
