"""Which operators the target's runtime implements: asked once for each kind of operands, and kept on disk."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from functools import cached_property

from taso_mirage.ir import Node, Tensor
from taso_mirage.onnx_io import serialize
from taso_mirage.ops import get
from taso_mirage.optimize import measure
from taso_mirage.optimize.cache import CostCache
from taso_mirage.optimize.cost import FREE, UNMEASURABLE
from taso_mirage.optimize.passes import Context
from taso_mirage.optimize.session import Session
from taso_mirage.optimize.settings import Setting, alone, description
from taso_mirage.optimize.target import LAYOUT


class Available:
    """Whether ONNX Runtime implements an operator for its operands on the target.

    What the original uses it does. Others are loaded once, and those outside of ONNX's own domain run once: their kernels refuse
    what their schemas allow.
    """

    def __init__(self, original: Iterable[Node], context: Context, cache: CostCache | None = None) -> None:
        self.context, self.cache = context, cache or CostCache(None)
        self.known = {self._key(n): True for n in original if n.args and n.op not in FREE and _is_standard(n)}

    @cached_property
    def _device(self) -> str:
        return measure.device_key(replace(self.context.target, options=()))  # they choose among kernels that are there

    def _key(self, node: Node) -> str:
        if not _is_standard(node) and node.op not in LAYOUT:
            return f"available {description(Setting(node), self.context)}"
        types = [a.type.dtype if isinstance(a.type, Tensor) else "-" for a in node.args]
        return f"available {node.op} {' '.join(types)} {self.context.opsets.get('', 0)}"

    def __call__(self, node: Node) -> bool:
        try:
            key = self._key(node)
        except UNMEASURABLE:
            return False
        if key not in self.known:
            found = self.cache.get(self._device, key)
            if found is None:
                found = float(self._tried(node))
                self.cache.put(self._device, key, found)
            self.known[key] = found == 1
        return self.known[key]

    def _tried(self, node: Node) -> bool:
        try:
            content = serialize(alone(Setting(node), self.context))
            session = Session(content, self.context.target, alone=self.context.target.gpu)
            if not _is_standard(node):
                session.run(measure.random_feed(session, 0))
        except UNMEASURABLE:
            return False
        return True


def _is_standard(node: Node) -> bool:
    return get(node.op).domain in ("", "ai.onnx")
