"""Sizes of free dims that their names, and the ranks and dtypes of their inputs, suggest: a batch
of 1, 128 tokens, 256 cached ones, images of 224, 16,000 samples of sound. Trial runs begin with
these sizes (`sizes.py`)."""

from __future__ import annotations

import re

from taso_mirage.ir.dims import symbol, symbols
from taso_mirage.ir.model import Model
from taso_mirage.ir.terms import Node, is_float

BATCH_SIZE, SEQUENCE, PAST, IMAGE, SAMPLES, CHANNELS = 1, 128, 256, 224, 16_000, 3
WORDS: tuple[tuple[frozenset[str], int], ...] = (
    (frozenset("past cache cached kv".split()), PAST),
    (frozenset("batch batchsize batches bs".split()), BATCH_SIZE),
    (frozenset("sample samples audio wav waveform speech".split()), SAMPLES),
    (frozenset("sequence seq seqlen length len token tokens text frames timesteps".split()), SEQUENCE),
    (frozenset("height width".split()), IMAGE),
    (frozenset("channel channels".split()), CHANNELS),
)
"""Words of a dim's name, the more significant ones first."""
GENERATED = re.compile(r"(d_)?(unnamed|unk|dim|d|s|dyn\w*|dynamic\w*|p2o\w*)_*\d+(_\d+)*", re.IGNORECASE)
"""Names that exporters invent. The position of such a dim says more than its name."""
SOUND = frozenset("audio wav waveform speech".split())


def hints(model: Model, default: int) -> dict[str, int]:
    """A size for every free dim: the one that its name or its place suggests, else the default."""
    found: dict[str, int] = {}
    for node in model.graph.inputs:
        for axis, dim in enumerate(node.tensor.shape or ()):
            for name in sorted(symbols(dim)):
                found.setdefault(name, _hint(name, node, axis if dim == symbol(name) else None, default))
    totals = [name for name in found if "total" in words_of(name)]
    past = [size for name, size in found.items() if size == PAST and name not in totals][:1]
    new = [size for name, size in found.items() if size == SEQUENCE and name not in totals][:1] or [1]
    return found | {name: past[0] + new[0] for name in totals if past}


def words_of(name: str) -> list[str]:
    """The words that a name consists of: `pastSequence_len` has three."""
    return re.sub(r"([a-z])([A-Z])", r"\1 \2", name).replace("_", " ").replace(".", " ").lower().split()


def _hint(name: str, node: Node, axis: int | None, default: int) -> int:
    own = {*words_of(name)}
    for known, size in WORDS:
        if own & known:
            return size
    rank = len(node.tensor.shape or ())
    if rank >= 4 and own in ({"h"}, {"w"}):
        return IMAGE
    if own == {"n"} and axis == 0 and rank >= 3:  # the N of NCHW
        return BATCH_SIZE
    if own & {"time", "t"} and is_float(node.dtype):
        return SAMPLES if rank <= 2 else SEQUENCE
    placed = None if axis is None or not GENERATED.fullmatch(name) else _place(node, axis, rank)
    return default if placed is None else placed


def _place(node: Node, axis: int, rank: int) -> int | None:
    """The size that the position of a dim without a name of its own suggests."""
    own = {*words_of(str(node.attr("name")))}
    if axis in image_axes(node):
        return IMAGE
    if axis == rank - 1 and own & SOUND and is_float(node.dtype):
        return SAMPLES
    if axis == 1 and rank == 2 and not is_float(node.dtype):
        return SEQUENCE
    return BATCH_SIZE if (axis == 0 and rank >= 2) or axis == state_batch(node) else None


def state_batch(node: Node) -> int | None:
    """The axis of the batch in a recurrent state, which ONNX lays out as (layers, batch,
    hidden)."""
    shape = node.tensor.shape or ()
    state = len(shape) == 3 and is_float(node.dtype) and isinstance(shape[0], int) and isinstance(shape[2], int)
    return 1 if state else None


def image_axes(node: Node) -> tuple[int, ...]:
    """The axes of height and width, where an input of rank 4 has few channels before or after
    them."""
    shape = node.tensor.shape or ()
    if len(shape) != 4:
        return ()
    if shape[1] in (1, 3, 4):
        return (2, 3)
    return (1, 2) if shape[3] in (1, 3, 4) else ()
