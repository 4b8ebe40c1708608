"""The error for a model that does not run on generated inputs. It names these inputs, the runtime's
reason, and the option to pass."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from taso_mirage.errors import InputsRefused
from taso_mirage.ir.dims import evaluate, symbols
from taso_mirage.ir.model import Model
from taso_mirage.ir.terms import is_float
from taso_mirage.system.wording import option


def shown_sizes(sizes: Mapping[str, int]) -> str:
    """`batch=8, sequence=128`."""
    return ", ".join(f"{name}={size}" for name, size in sizes.items())


def made_up(model: Model, sizes: Mapping[str, int], fixed: Collection[str], kept: Collection[str]) -> list[str]:
    """Descriptions of the generated inputs: sizes and integers."""
    dims = {name: size for name, size in sizes.items() if name not in fixed}
    nodes = [n for n in model.graph.inputs if not is_float(n.dtype) and n.attr("name") not in kept]
    drawn = {n.attr("name"): f"{n.attr('name')!r} ({n.type})" for n in nodes if n.attr("name") not in model.integers}
    indices = [
        f"rows of a table of {model.rows[name]} for {text}" for name, text in drawn.items() if name in model.rows
    ]
    others = ", ".join(text for name, text in drawn.items() if name not in model.rows)
    chosen = [f"{n.attr('name')}={model.integers[n.attr('name')]}" for n in nodes if n.attr("name") in model.integers]
    return (
        ([f"the sizes {shown_sizes(dims)}"] if dims else [])
        + indices
        + ([f"0 or 1 for {others}"] if others else [])
        + ([", ".join(chosen)] if chosen else [])
    )


def refusal(
    model: Model, sizes: Mapping[str, int], fixed: Collection[str], kept: Collection[str], why: str, trials: int = 1
) -> InputsRefused:
    """The error; `trials` is the number of all trial runs."""
    made = " and ".join(made_up(model, sizes, fixed, kept))
    others = f"; {trials - 1} other trials did not run either" if trials > 1 else ""
    return InputsRefused(
        f"the model does not run on generated inputs: {made} were chosen here{others}; give valid inputs "
        f"with {_shapes(model, sizes, fixed)}{option('inputs', 'FILE.npz')}. {why[:1].upper()}{why[1:]}"
    )


def _shapes(model: Model, sizes: Mapping[str, int], fixed: Collection[str]) -> str:
    """The options that set the generated sizes: by name, and as the shape of the first input that
    has one of them."""
    free = [name for name in sizes if name not in fixed]
    for node in model.graph.inputs:
        if any(name in symbols(dim) for dim in node.tensor.shape or () for name in free):
            now = ",".join(str(evaluate(dim, sizes)) for dim in node.shape)
            return f"{option('shape', 'NAME:SIZE')} or {option('shape', 'INPUT:SIZES')} (now {node.attr('name')}:{now}), or with "
    return ""
