"""The operators that the target's runtime implements. The runtime is asked once for each kind of
operands, and the answers are stored on disk."""

from __future__ import annotations

from collections.abc import Iterable
from functools import cached_property

from taso_mirage.errors import OutOfTime
from taso_mirage.ir.terms import Node, Tensor
from taso_mirage.measure import native, tasks
from taso_mirage.measure.child import in_child
from taso_mirage.measure.cost_cache import CostCache
from taso_mirage.measure.session import Session
from taso_mirage.onnx_io import serialize
from taso_mirage.operators.ops import get, traits
from taso_mirage.rewriting.derived_traits import elementwise
from taso_mirage.search.cost import FREE, UNMEASURABLE
from taso_mirage.search.fusion_context import FusionContext, context_model, description
from taso_mirage.search.passes import Context


class Available:
    """Whether the target's runtime implements an operator for its operands.

    The runtime implements the operators of the original. Others are loaded once, and those outside
    of ONNX's own domain run once: their kernels refuse operands that their schemas allow.
    """

    def __init__(self, original: Iterable[Node], context: Context, cache: CostCache | None = None) -> None:
        self.context, self.cache = context, cache or CostCache(None)
        self.known = {self._keys(n)[0]: True for n in original if n.args and n.op not in FREE and _is_standard(n)}

    @cached_property
    def _device(self) -> str:
        """Without the target's options, which choose among kernels that are there."""
        return in_child(native.device_key, self.context.target, False)

    def _keys(self, node: Node) -> tuple[str, ...]:
        """The keys of an answer, the narrowest first. An operator is implemented if the answer of
        any key says so.

        Convolutions with channels last share one key for all sizes, and so do functions of single
        elements: there are so many of them that a trial of each would take as long as its
        measurement.
        """
        types = [a.type.dtype if isinstance(a.type, Tensor) else "-" for a in node.args]
        wide = f"available {node.op} {' '.join(types)} {self.context.opsets.get('', 0)}"
        if _is_standard(node):
            return (wide,)
        exact = f"available {description(FusionContext(node), self.context)}"
        function = len(node.args) == 1 and elementwise(node.op)
        return (exact, wide) if traits(node).layout or function else (exact,)

    def __call__(self, node: Node) -> bool:
        if get(node.op).domain not in self.context.target.domains:
            return False
        try:
            keys = self._keys(node)
        except UNMEASURABLE:
            return False
        found = [self._found(key) for key in keys]
        if found[0] is None and True not in found:
            try:
                there = self._tried(node)
            except OutOfTime:  # which gives no information about the operator
                return False
            for key in keys if there else keys[:1]:  # a missing operator gives no information about others
                self.cache.put(self._device, key, float(there))
                self.known[key] = there
            return there
        return True in found

    def _found(self, key: str) -> bool | None:
        """The known answer for a key; None if there is none."""
        if key not in self.known:
            found = self.cache.get(self._device, key)
            if found is None:
                return None
            self.known[key] = found == 1
        return self.known[key]

    def _tried(self, node: Node) -> bool:
        try:
            content = serialize(context_model(FusionContext(node), self.context))
            session = Session(content, self.context.target, alone=not self.context.target.on_cores)
            if not _is_standard(node):
                session.run(tasks.random_feed(session, 0))
        except OutOfTime:
            raise
        except UNMEASURABLE:
            return False
        return True


def _is_standard(node: Node) -> bool:
    return get(node.op).domain in ("", "ai.onnx")
