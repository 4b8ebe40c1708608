"""The header comment of a generated program, which describes a kernel."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence

from taso_mirage.emit.gpu.order import Order
from taso_mirage.emit.gpu.program import TritonBuffer
from taso_mirage.ir.mugraph import LoopPhase

WHERE = {
    LoopPhase.INVARIANT: "before the loop",
    LoopPhase.LOOP: "in the loop",
    LoopPhase.AFTER: "after the loop",
}


def said_of(
    orders: Mapping[LoopPhase, Order], loads: int | None, before: Collection[str], results: Sequence[TritonBuffer]
) -> Iterator[str]:
    """Sentences on the orders of its operators, on the bytes that an iteration `loads` (None
    without a loop), on the tiles that are loaded `before` the preceding kernel ends, and on the
    layouts of its `results`."""
    for stage, where in WHERE.items():
        order = orders[stage]
        if names := [n.op for n in order.terms if n.args]:
            how = "the least of all orders" if order.exact else "as found"
            place = "in one pass" if loads is None else where
            yield f"{place}: {', '.join(names)}; at most {order.live} elements live ({how})."
    if loads is not None:
        yield f"loads: {loads} bytes an iteration, STAGES in flight; all else is in registers."
    if before:
        yield f"{', '.join(sorted(before))}: of weights, loaded before the kernel before ends: it must not write them."
    for each in results:
        if each.order != tuple(range(len(each.shape))):
            yield f"{each.name}: dims {each.order} from the outermost on; of all orders the fewest sectors."
