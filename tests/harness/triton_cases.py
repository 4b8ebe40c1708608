"""Goals with muGraphs of every kind, for programs in Triton."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from itertools import islice

import mugraphs
import numpy as np

from taso_mirage.forms.base.form import in_operators
from taso_mirage.forms.channels_last import ChannelsLastConvolution
from taso_mirage.ir.terms import ABSENT, Graph, Node, constant, numpy_dtype
from taso_mirage.meanings.reals import EXACT
from taso_mirage.mugraph.search import Search, SearchOptions
from taso_mirage.operators.interpret import interpret
from taso_mirage.operators.ops import term

Case = Callable[[], tuple[Graph, Graph]]


def elementwise(name: str, leaf: str = "X", **attrs: object) -> Case:
    """A chain in registers: one block a row, of a size that is no power of two."""

    def make() -> tuple[Graph, Graph]:
        x = mugraphs.leaf(leaf, "float32", 6, 5)
        made = mugraphs.kernel([(x, (0,), -1)], lambda t: term(name, t, **attrs), (3,), 1, (0,))
        return Graph((x,), (made,)), Graph((x,), (term(name, x, **attrs),))

    return make


def product(equation: str, a: tuple[int, ...], b: tuple[int, ...], dtype: str = "float16") -> Case:
    """One einsum in one block."""

    def make() -> tuple[Graph, Graph]:
        x, y = mugraphs.leaf("A", dtype, *a), mugraphs.leaf("B", dtype, *b)
        goal = term("einsum", x, y, equation=equation)
        made = mugraphs.kernel(
            [(x, (-1,), -1), (y, (-1,), -1)], lambda s, t: term("einsum", s, t, equation=equation), (1,), 1, (0,)
        )
        return Graph((x, y), (made,)), Graph((x, y), (goal,))

    return make


def rotated() -> tuple[Graph, Graph]:
    """Rotary embedding: halves of a head turn together."""
    x, angles = mugraphs.leaf("X", "float16", 2, 6, 8), mugraphs.leaf("angles", "float16", 2, 6, 4)

    def body(x: Node, angles: Node) -> Node:
        halves = [term("slice", x, axes=(2,), starts=(s,), ends=(s + 4,), steps=(1,)) for s in (0, 4)]
        return term("concat", term("sub", term("mul", halves[0], angles), halves[1]), term("add", *halves), axis=2)

    made = mugraphs.kernel([(x, (0,), -1), (angles, (0,), -1)], body, (2,), 1, (0,))
    return Graph((x, angles), (made,)), Graph((x, angles), (body(x, angles),))


def masked_rows() -> tuple[Graph, Graph]:
    """`where` with a boolean operand, and a softmax in the tile."""
    x, m = mugraphs.leaf("X", "float32", 6, 5), mugraphs.leaf("M", "bool", 6, 5)

    def body(x: Node, m: Node) -> Node:
        return term("softmax", term("where", m, x, constant(-1e4, "float32")), axis=1)

    made = mugraphs.kernel([(x, (0,), -1), (m, (0,), -1)], body, (3,), 1, (0,))
    return Graph((x, m), (made,)), Graph((x, m), (body(x, m),))


def convolution(image: tuple[int, ...], kernel: tuple[int, ...], group: int, form: tuple[int, tuple[int, ...]]) -> Case:
    """A convolution with channels last and stride 2 along one axis, its bias and a relu."""

    def make() -> tuple[Graph, Graph]:
        x, w = mugraphs.leaf("X", "float16", *image), mugraphs.leaf("W", "float16", *kernel)
        b = mugraphs.leaf("B", "float16", kernel[3])
        attrs = (1, 2), (1, 1, 0, 1), (1, 1), group, 1, True
        made = ChannelsLastConvolution(x, w, b, ABSENT, *attrs)
        return Graph((x, w, b), (made.mugraph(*form),)), Graph((x, w, b), in_operators([made.goal()]))

    return make


def threads() -> tuple[Graph, Graph]:
    """A kernel in a kernel: its elementwise chain stays in registers."""
    x, y = mugraphs.leaf("X", "float32", 6, 10), mugraphs.leaf("Y", "float32", 6, 10)

    def chain(x: Node, y: Node) -> Node:
        return term("add", term("swish", x), y)

    def body(x: Node, y: Node) -> Node:
        return term("exp", mugraphs.kernel([(x, (1,), -1), (y, (1,), -1)], chain, (5,), 1, (1,)))

    made = mugraphs.kernel([(x, (0,), -1), (y, (0,), -1)], body, (3,), 1, (0,))
    return Graph((x, y), (made,)), Graph((x, y), (term("exp", chain(x, y)),))


def turned_differences() -> tuple[Graph, Graph]:
    """e to the power of a difference is a power of 2, but not of the changed difference."""
    x, y = mugraphs.leaf("X", "float16", 6, 5, 5), mugraphs.leaf("Y", "float16", 6, 1, 5)

    def body(x: Node, y: Node) -> Node:
        gap = term("sub", x, y)
        turned = term("exp", term("transpose", gap, perm=(0, 2, 1)))
        halved = term("exp", term("transpose", term("mul", gap, constant(0.5, "float16")), perm=(0, 2, 1)))
        total = term("reduce_sum", term("exp", gap), axes=(1, 2), keepdims=1)
        return term("add", term("mul", turned, total), halved)

    made = mugraphs.kernel([(x, (0,), -1), (y, (0,), -1)], body, (3,), 1, (0,))
    return Graph((x, y), (made,)), Graph((x, y), (body(x, y),))


def one_query(dtype: str, normed: bool = False) -> Callable[[], tuple[Graph, Graph]]:
    """Attention of one row in a block: the scores are a vector times a matrix, each iteration wants
    them, and the maximum is a number."""

    def make() -> tuple[Graph, Graph]:
        q, k, v = (
            mugraphs.leaf("Q", dtype, 2, 20),
            mugraphs.leaf("K", dtype, 2, 20, 72),
            mugraphs.leaf("V", dtype, 2, 72, 18),
        )

        def scores(q: Node, k: Node) -> Node:
            found = term("reduce_sum", term("mul", term("reshape", q, shape=(*q.shape, 1)), k), axes=(1,), keepdims=0)
            size = term("reduce_sum", term("mul", k, k), axes=(1,), keepdims=0)
            return term("div", found, term("sqrt", size)) if normed else found

        def body(q: Node, k: Node, v: Node) -> Node:
            found = scores(q, k)
            top = term("running_max", term("reduce_max", found, axes=(1,), keepdims=1))
            powers = term("exp", term("sub", found, top))
            parts = term("reduce_sum", term("mul", term("unsqueeze", powers, axes=(2,)), v), axes=(1,), keepdims=0)
            total = term("reduce_sum", powers, axes=(1,), keepdims=1)
            return term("div", *(term("accumulate", x, top, over="rescaled", degree=1) for x in (parts, total)))

        made = mugraphs.kernel([(q, (0,), -1), (k, (0,), 2), (v, (0,), 1)], body, (2,), 3, (0,))
        share = term("softmax", scores(q, k), axis=1)
        return Graph((q, k, v), (made,)), Graph((q, k, v), (term("einsum", share, v, equation="bk,bkd->bd"),))

    return make


def one_for_all_blocks() -> tuple[Graph, Graph]:
    """Sums that the blocks along the second grid dim share: the first of them gives them."""
    x, w = mugraphs.leaf("X", "float16", 4, 24), mugraphs.leaf("W", "float16", 24, 10)

    def partial(x: Node, w: Node) -> tuple[Node, Node]:
        squares = term("reduce_sum", term("mul", x, x), axes=(1,), keepdims=1)
        return term("unsqueeze", term("matmul", x, w), axes=(0,)), term("unsqueeze", squares, axes=(0,))

    def whole(product: Node, squares: Node) -> Node:
        sums = [term("reduce_sum", t, axes=(0,), keepdims=0) for t in (product, squares)]
        return term("div", *sums)

    first = mugraphs.kernel([(x, (1, -1), -1), (w, (0, 1), -1)], partial, (3, 5), 1, (0, 2), (0, -1))
    parts = [term("item", first, index=i) for i in range(2)]
    second = mugraphs.kernel([(parts[0], (2,), -1), (parts[1], (-1,), -1)], whole, (2,), 1, (1,))
    squares = term("reduce_sum", term("mul", x, x), axes=(1,), keepdims=1)
    return Graph((x, w), (second,)), Graph((x, w), (term("div", term("matmul", x, w), squares),))


def softmax_of(dtype: str, loop: int) -> Case:
    """The sum and the maximum of a softmax's tile; rows of the second input may be masked whole."""

    def make() -> tuple[Graph, Graph]:
        x, mask = mugraphs.leaf("X", dtype, 4, 8), mugraphs.leaf("lowest", dtype, 4, 8)

        def goal(x: Node, mask: Node) -> Node:
            return term("reduce_sum", term("mul", term("softmax", term("add", x, mask), axis=1), x), axes=(1,))

        def body(x: Node, mask: Node) -> Node:
            scores = term("add", x, mask)
            top = term("reduce_max", scores, axes=(1,))
            m = term("running_max", top) if loop > 1 else top
            p = term("exp", term("sub", scores, m))
            sums = [term("reduce_sum", each, axes=(1,)) for each in (term("mul", p, x), p)]
            if loop > 1:
                sums = [term("accumulate", each, m, over="rescaled", degree=1) for each in sums]
            return term("reduce_sum", term("div", *sums), axes=(1,), keepdims=0)

        axis = 1 if loop > 1 else -1
        made = mugraphs.kernel([(x, (0,), axis), (mask, (0,), axis)], body, (2,), loop, (0,))
        return Graph((x, mask), (made,)), Graph((x, mask), (term("squeeze", goal(x, mask), axes=(1,)),))

    return make


def two_maxima() -> tuple[Graph, Graph]:
    """The maximum of all elements is folded from one of each, which runs as well; two of those are
    -inf throughout."""
    x = mugraphs.leaf("masked", "float32", 6, 8)

    def together(total: Node, largest: Node, top: Node) -> Node:
        total, largest = (
            term("where", term("equal", largest, constant(-np.inf, "float32")), constant(2.0, "float32"), each)
            for each in (total, largest)
        )
        return term("add", term("reduce_sum", term("mul", total, largest), axes=(1,)), top)

    def body(x: Node) -> Node:
        m = term("running_max", x)
        total = term("accumulate", term("exp", term("sub", x, m)), m, over="rescaled", degree=1)
        top = term("accumulate", term("reduce_max", x, axes=(1,)), over="max")
        return together(total, term("accumulate", x, over="max"), top)

    def goal(x: Node) -> Node:
        halves = [term("slice", x, axes=(1,), starts=(s,), ends=(s + 4,), steps=(1,)) for s in (0, 4)]
        largest = term("max", *halves)
        total = term("add", *[term("exp", term("sub", half, largest)) for half in halves])
        return together(total, largest, term("reduce_max", x, axes=(1,)))

    return Graph((x,), (mugraphs.kernel([(x, (-1,), 1)], body, (1,), 2, (0,)),)), Graph((x,), (goal(x),))


def padded_rows() -> tuple[Graph, Graph]:
    """A product over rows that are padded with zeros, whose maxima are infinite there."""
    x, w = mugraphs.leaf("positive", "float32", 5, 8), mugraphs.leaf("W", "float32", 5, 6)

    def body(x: Node, w: Node) -> Node:
        m = term("running_max", term("reduce_max", term("reciprocal", x), axes=(1,)))
        squares = term("accumulate", term("mul", x, x), m, over="rescaled", degree=1)
        return term("einsum", squares, w, equation="mk,mn->kn")

    made = mugraphs.kernel([(x, (-1,), 1), (w, (-1,), -1)], body, (1,), 2, (0,))
    return Graph((x, w), (made,)), Graph((x, w), (made,))


def tiny_divisors() -> tuple[Graph, Graph]:
    """1e-39 is a number of float32, and its reciprocal is none."""
    x, y = mugraphs.leaf("tiny", "float32", 6, 5), mugraphs.leaf("tiny", "float32", 6, 1)
    made = mugraphs.kernel([(x, (0,), -1), (y, (0,), -1)], lambda x, y: term("div", x, y), (3,), 1, (0,))
    return Graph((x, y), (made,)), Graph((x, y), (term("div", x, y),))


def first_block() -> tuple[Graph, Graph]:
    """Blocks that differ along the first grid dim, of which the first one gives the result."""
    x = mugraphs.leaf("X", "float32", 6, 10)
    made = mugraphs.kernel([(x, (1, 0), -1)], lambda t: term("reduce_sum", t, axes=(1,)), (5, 2), 1, (-1, 0))
    head = term("slice", x, axes=(1,), starts=(0,), ends=(2,), steps=(1,))
    return Graph((x,), (made,)), Graph((x,), (term("reduce_sum", head, axes=(1,)),))


def less_infinity() -> tuple[Graph, Graph]:
    x = mugraphs.leaf("X", "float16", 4, 6)

    def body(x: Node) -> Node:
        return term("exp", term("sub", x, constant(np.inf, "float16")))

    made = mugraphs.kernel([(x, (0,), -1)], lambda x: term("add", x, body(x)), (2,), 1, (0,))
    return Graph((x,), (made,)), Graph((x,), (term("add", x, body(x)),))


def idle_loop() -> tuple[Graph, Graph]:
    """Nothing of the loop is a result."""
    x, y = mugraphs.leaf("X", "float32", 4, 6), mugraphs.leaf("Y", "float32", 4, 3)
    made = mugraphs.kernel([(x, (0,), 1), (y, (0,), -1)], lambda x, y: term("exp", y), (2,), 3, (0,))
    return Graph((x, y), (made,)), Graph((x, y), (term("exp", y),))


def split_last() -> tuple[Graph, Graph]:
    """Partial sums that stand along the last dim: between the kernels it had better be the first
    one."""
    x = mugraphs.leaf("X", "float32", 12, 20)

    def partial(x: Node) -> Node:
        return term("unsqueeze", term("reduce_sum", x, axes=(0,), keepdims=0), axes=(1,))

    def total(x: Node) -> Node:
        return term("reduce_sum", x, axes=(1,), keepdims=0)

    first = mugraphs.kernel([(x, (0,), -1)], partial, (3,), 1, (1,))
    second = mugraphs.kernel([(first, (0,), -1)], total, (2,), 1, (0,))
    return Graph((x,), (second,)), Graph((x,), (term("reduce_sum", x, axes=(0,), keepdims=0),))


@cache
def searched(name: str) -> list[tuple[Graph, Graph]]:
    """The muGraphs that the search proposes for a goal, each structure once, at small sizes that
    are no powers of two."""
    goal = {
        "lora": lambda: mugraphs.lora(16, 256, 4096, 16, 32, 4),
        "rmsnorm": lambda: mugraphs.rmsnorm_linear(2, 512, 64, 4, 4, gamma=True),
    }[name]()[1]
    found = {c.roles(): c for c in reversed(Search(goal, SearchOptions()).candidates())}
    pairs = (c.shrunk() for c in reversed(found.values()))
    return [(graph, goal) for graph, goal in islice(pairs, SEARCHED) if graph is not None]


def island() -> tuple[Graph, Graph]:
    """A norm in single precision with its gain, as converters leave it, clamped, before a product
    in half."""
    x, w = mugraphs.leaf("X", "float16", 6, 24), mugraphs.leaf("W", "float16", 24, 10)
    gain, low = mugraphs.leaf("gain", "float32", 24), mugraphs.leaf("low", "bool")
    least = term("where", low, constant(-0.5, "float32"), constant(-2.0, "float32"))
    wide = term("max", term("cast", x, to="float32"), least)
    normed = term("cast", term("rms_norm", wide, gain, axis=1), to="float16")
    goal = Graph((x, w, gain, low), (term("matmul", normed, w),))
    return best(goal), goal


def widened() -> tuple[Graph, Graph]:
    """A result of another float type than all that is read."""
    x = mugraphs.leaf("X", "float16", 6, 8)
    goal = Graph((x,), (term("exp", term("cast", x, to="float32")),))
    return best(goal), goal


@cache
def best(goal: Graph) -> Graph:
    return next(iter(Search(goal, SearchOptions()).run(1, 20.0))).graph


SEARCHED = 6
WORKLOADS: dict[str, Case] = {
    **{
        f"searched_{name}_{i}": lambda name=name, i=i: searched(name)[i]
        for name in ("lora", "rmsnorm")
        for i in range(SEARCHED)
    },
    "rmsnorm": mugraphs.rmsnorm_linear,
    "rmsnorm_gamma_bias": lambda: mugraphs.rmsnorm_linear(gamma=True, bias=True),
    "rmsnorm_one_row": lambda: mugraphs.rmsnorm_linear(rows=1, gamma=True),
    "rmsnorm_fp32": lambda: mugraphs.rmsnorm_linear(rows=3, inner=14, cols=9, grid=3, loop=2, dtype="float32"),
    "gated_mlp": mugraphs.gated_mlp,
    "lora": mugraphs.lora,
    "ntrans": mugraphs.ntrans,
    "attention": mugraphs.attention_safe,
    "attention_mask": lambda: mugraphs.attention_safe(masked=True, dtype="float32"),
    "attention_one_query": lambda: mugraphs.attention_safe(queries=1, blocks=1),
    "attention_split": mugraphs.attention_split_safe,
    "attention_large_logits": lambda: mugraphs.attention_split_safe(scaled=False),
    "attention_hidden_keys": lambda: mugraphs.attention_safe(masked=True),
    "qknorm": mugraphs.qknorm,
    "rmsnorm_powers_of_two": lambda: mugraphs.rmsnorm_linear(16, 64, 32, 2, 2, gamma=True),
    "attention_powers_of_two": lambda: mugraphs.attention_split_safe(2, 32, 16, 64, 32, 2, 2, 2, masked=True),
}
OTHERS: dict[str, Case] = {
    **{name: elementwise(name) for name in ("relu", "gelu", "sigmoid", "swish", "tanh", "softplus", "exp", "abs")},
    "tanh_near_zero": elementwise("tanh", "near_zero"),
    "softplus_far_below": elementwise("softplus", "far_below"),
    "softmax": elementwise("softmax", axis=1),
    "log_softmax": elementwise("log_softmax", axis=1),
    "reduce_l2": elementwise("reduce_l2", axes=(1,)),
    "transpose": elementwise("transpose", perm=(0, 1)),
    "ntrans_bf16": lambda: mugraphs.ntrans(dtype="bfloat16"),
    "masked_rows": masked_rows,
    "rotated": rotated,
    "split_last": split_last,
    "turned_differences": turned_differences,
    "one_for_all_blocks": one_for_all_blocks,
    "first_block": first_block,
    "less_infinity": less_infinity,
    "two_maxima": two_maxima,
    "padded_rows": padded_rows,
    "tiny_divisors": tiny_divisors,
    "idle_loop": idle_loop,
    **{f"masked_whole_{d}_{n}": softmax_of(d, n) for d in ("float16", "bfloat16", "float32") for n in (1, 2)},
    "threads": threads,
    "batched": product("bij,bjk->bik", (3, 4, 5), (3, 5, 6)),
    "shared_batch": product("hgmd,hnd->hgmn", (2, 3, 4, 5), (2, 7, 5)),
    "two_sums": product("mij,nij->mn", (3, 4, 5), (6, 4, 5)),
    "vector": product("k,kn->n", (5,), (5, 6)),
    "outer": product("m,n->nm", (3,), (5,)),
    "summed_alone": product("mkj,kn->nm", (3, 5, 2), (5, 4)),
    **{f"one_query_{d}": one_query(d) for d in ("float16", "float32")},
    "one_query_normed": one_query("float16", normed=True),
    "dot_product": product("mk,mk->m", (3, 5), (3, 5)),
    "island": island,
    "widened": widened,
    "groups": convolution((2, 9, 7, 16), (3, 3, 4, 16), 4, (4, (32, 16, 16, 0))),
    "groups_in_registers": convolution((2, 9, 7, 16), (3, 3, 4, 24), 4, (2, (16, 16, 16, 1))),
    "one_channel_each": convolution((2, 6, 7, 24), (3, 3, 1, 24), 24, (1, (32, 16, 1, 1))),
    "few_channels": convolution((2, 9, 7, 3), (5, 3, 3, 20), 1, (1, (32, 32, 16, 0))),
}
CASES = WORKLOADS | OTHERS | mugraphs.CLUSTERS
LARGEST = {"float16": 65504.0, "bfloat16": 3.3895313892515355e38, "float32": 3.4028234663852886e38}
"""The largest number of a dtype."""
BOUND = {"float16": 4e-3, "bfloat16": 3e-2, "float32": 2e-6}
"""Largest error relative to the largest element: a few roundings of the dtype."""


def drawn(name: str, node: Node, seed: int) -> np.ndarray:
    rng = np.random.default_rng(seed)
    if node.dtype == "bool":
        return rng.random(node.shape) < 0.6
    values = rng.normal(size=node.shape) * (25 if name == "attention_large_logits" else 1)
    if name == "attention_hidden_keys" and node.attr("name") == "mask":
        values[:, :5] = -np.inf  # all keys of the first iteration, and one of the second
    own = node.attr("name")
    if own == "lowest":  # one row is masked whole, as exporters mask, and the first half of another one
        values[1, :] = values[2, :4] = -LARGEST[node.dtype]
    if own == "masked":
        values[1:3, [1, 5]] = -np.inf
    if own in ("positive", "tiny"):
        values = (1 + np.abs(values)) * (1e-39 if own == "tiny" else 1)
    if own in ("near_zero", "far_below"):
        values = 1e-3 * values if own == "near_zero" else values - 14
    return values.astype(numpy_dtype(node.dtype))


def agrees(name: str, found: np.ndarray) -> bool:
    """Whether a case's result is its goal's."""
    _, goal = CASES[name]()
    env = {x: EXACT.load(drawn(name, x, i)) for i, x in enumerate(goal.inputs)}
    wanted = interpret(goal.outputs, EXACT, env)[goal.outputs[0]]
    bound = BOUND[goal.inputs[0].dtype] * np.abs(wanted).max()
    return found.shape == wanted.shape and bool(np.abs(found - wanted).max() <= bound)


REAL: dict[str, Case] = {
    # Triton's interpreter multiplies the bits of bf16 operands, so their dots are only compiled
    "rmsnorm_bf16": lambda: mugraphs.rmsnorm_linear(dtype="bfloat16"),
    "one_query_bf16": one_query("bfloat16"),
    "gated_mlp": lambda: mugraphs.gated_mlp(8, 4096, 4096, 128, 64),
    "rmsnorm_linear": lambda: mugraphs.rmsnorm_linear(2, 4096, 6144, 96, 32),
    "ntrans": lambda: mugraphs.ntrans(64, 4096, 64),
    "attention_split": lambda: mugraphs.attention_split_safe(2, 256, 64, 4096, 64, 4, 8, 8),
    "attention_cluster": lambda: mugraphs.attention_cluster(2, 256, 64, 4096, 64, 4, 16, 8),
}
