"""The arguments that a captured graph changes in place: seen in a run without elements."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from taso_mirage.torch.functionalization import Captured

STATISTICS = frozenset(("running_mean", "running_var"))
"""Operands that batch norms in training change, though PyTorch's declarations do not say it."""


def changed_arguments(captured: Captured, given: Sequence[Any]) -> frozenset[int] | None:
    """The positions of those that a call on arguments like these changes; None where only a run
    with elements tells."""
    mode, writes = FakeTensorMode(allow_non_fake_inputs=True), _Writes()
    try:
        fakes = [mode.from_tensor(each) if isinstance(each, torch.Tensor) else each for each in given]
        with mode, writes, torch.no_grad():
            torch.fx.Interpreter(captured).run(*fakes)
    except Exception:  # a call that depends on elements, or is unknown to PyTorch's own tracing
        return None
    return frozenset(i for i, each in enumerate(fakes) if isinstance(each, torch.Tensor) and memory(each) in writes.to)


def are_apart(changed: Collection[int], given: Sequence[Any]) -> bool:
    """Whether none of the arguments at these positions shares memory with another one."""
    memories = [each.untyped_storage().data_ptr() for each in given if isinstance(each, torch.Tensor)]
    return all(memories.count(given[i].untyped_storage().data_ptr()) == 1 for i in changed)


class _Writes(TorchDispatchMode):  # type: ignore[misc]
    """`to`: the memory that operators wrote into."""

    def __init__(self) -> None:
        super().__init__()
        self.to: set[int] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.to.update(map(memory, _written(func, args, kwargs or {})))
        return func(*args, **(kwargs or {}))


def memory(tensor: Any) -> int:
    """A key that is equal for tensors that share memory, also for those without elements."""
    return int(tensor.untyped_storage()._cdata)


def _written(operator: Any, args: Sequence[Any], named: dict[str, Any]) -> Iterator[Any]:
    """The tensors that a call of an operator writes into."""
    declared = operator._schema.arguments
    values = dict(zip((each.name for each in declared), args, strict=False)) | named
    for each in declared:
        writes = each.alias_info is not None and each.alias_info.is_write
        if writes or (each.name in STATISTICS and values.get("training", True)):
            yield from (leaf for leaf in tree_leaves(values.get(each.name)) if isinstance(leaf, torch.Tensor))
