"""A loop that carries states over the elements of sequences."""

import numpy as np

from op_specs.arithmetic import add, mul
from op_specs.gather import gather
from taso_mirage.errors import IllTyped, Unsupported
from taso_mirage.ir.dims import learn
from taso_mirage.ir.mugraph import Lowering
from taso_mirage.ir.terms import ABSENT, Graph, Literal, Tensor, constant, numpy_dtype, substitute, variable
from taso_mirage.meanings.linear_states import LinearStates
from taso_mirage.meanings.shapes import SHAPES
from taso_mirage.operators.interpret import interpret_term
from taso_mirage.operators.ops import Call, Ints, extents, op


@op(onnx="Scan", since=9, lowering=Lowering.STEPS)
def scan(
    xp, *operands, body: Graph, states: int, sequences: int, backward: int = 0, counted: int = 0, chunk: Ints = ()
):
    """states, then sequences, then tensors that every step reads -> the states after the last step,
    then each further output of the body for all steps, side by side along a new first axis; a
    tuple unless there is one.

    `body`: a step, a function of the states, one element of each sequence along its first axis,
    and the other tensors. `states`, `sequences`: how many there are. `backward`: 1 where the last
    element is the first step's; the outputs of a step stand at its element's place. `counted`: 1
    where ONNX has the term as a Loop, which may have no steps. `chunk`: for a kernel whose only
    state is a matrix, the number of steps that read the state before all of them and add products
    to what they read (`meanings/linear_states.py`), and the axes of the state over which steps sum
    and along which they do not.
    """
    carried = list(operands[:states])
    given, others = operands[states : states + sequences], operands[states + sequences :]
    if not given:
        raise IllTyped("a scan of no sequence, whose number of steps nothing says")
    count = xp.shape(given[0])[0]
    if xp is SHAPES:
        found = _types(body, carried, given, others, count)
        return found[0] if len(found) == 1 else found

    def step(t):
        at = count - 1 - t if backward else t
        elements = [xp.reshape(xp.slice(x, 0, at, at + 1), xp.shape(x)[1:]) for x in given]
        if chunk and t % chunk[0] == 0:
            linear[:] = [LinearStates(xp, *_whole(linear, carried), *chunk[1:])]
            carried[:] = [linear[0].first]
        made = run_body(linear[0] if chunk else xp, body, [*carried, *elements, *others])
        carried[:] = made[:states]
        return [linear[0].plain(x) for x in made[states:]] if chunk else made[states:]

    linear = []
    steps = xp.each(count, step)
    steps = steps[::-1] if backward else steps
    stacked = [_stacked(xp, [each[i] for each in steps], o.tensor) for i, o in enumerate(body.outputs[states:])]
    found = (*_whole(linear, carried), *stacked)
    return found[0] if len(found) == 1 else found


def _whole(linear, carried):
    """The elements of the states."""
    return [linear[0].total(x) for x in carried] if linear else carried


def run_body(xp, body: Graph, given):
    """The outputs of a step, whose sizes are those of its operands."""
    values = {ABSENT: None, **dict(zip(body.inputs, given, strict=True))}
    sizes = {}
    for leaf, x in zip(body.inputs, given, strict=True):
        if all(isinstance(n, int) for n in xp.shape(x)):
            learn(leaf.shape, xp.shape(x), sizes)
    for node in body:
        if node not in values:
            values[node] = interpret_term(node, xp, [values[a] for a in node.args], sizes)
    return [values[o] for o in body.outputs]


def _types(body, carried, given, others, count):
    for x in given:
        if len(SHAPES.shape(x)) == 0 or SHAPES.shape(x)[0] != count:
            raise IllTyped(f"sequences of {count} elements and of type {x}")
    elements = [Tensor(x.dtype, SHAPES.shape(x)[1:]) for x in given]
    wanted, had = [*carried, *elements, *others], [leaf.type for leaf in body.inputs]
    if wanted != had:
        raise IllTyped(f"operands of a step of the types {_shown(wanted)}, for a body of {_shown(had)}")
    made = [o.tensor for o in body.outputs]
    if made[: len(carried)] != carried:
        raise IllTyped(f"states of the types {_shown(carried)} become {_shown(made[: len(carried)])}")
    return (*carried, *(Tensor(t.dtype, (count, *t.shape)) for t in made[len(carried) :]))


def _shown(types):
    return ", ".join(map(str, types))


def _stacked(xp, parts, type):
    if parts:
        return xp.concat([xp.reshape(x, (1, *xp.shape(x))) for x in parts], 0)
    return xp.constant(Literal.of(np.zeros((0, *type.shape), numpy_dtype(type.dtype))))


@scan.importer
def _(call):
    raise Unsupported("a loop is a term of its body where `onnx_io.loops` reads it")


@scan.exporter
def _(node, opset):
    """The operands that a step reads whole are captured by its body."""
    if node.attr("counted"):
        return _counted(node, opset)
    count = node.attr("sequences")
    attrs = {"body": node.attr("body"), "num_scan_inputs": count}
    if node.attr("backward"):
        outputs = len(node.attr("body").outputs) - node.attr("states")
        attrs |= {"scan_input_directions": (1,) * count}
        attrs |= {"scan_output_directions": (1,) * outputs} if outputs else {}
    return Call("Scan", node.args[: node.attr("states") + count], attrs, opset)


def _counted(node, opset):
    """A Loop over the places of the sequences, which its body captures."""
    states, end, body = node.attr("states"), node.attr("states") + node.attr("sequences"), node.attr("body")
    place, goes_on = variable("place", Tensor("int64", ())), variable("goes on", Tensor("bool", ()))
    sequences = [variable(f"sequence {i}", x.tensor) for i, x in enumerate(node.args[states:end])]
    elements = [gather.term(x, place, axis=0) for x in sequences]
    made = substitute(body.outputs, dict(zip(body.inputs[states:end], elements, strict=True)))
    step = Graph(
        (place, goes_on, *body.inputs[:states], *sequences, *body.inputs[end:]),
        (goes_on, *made),
    )
    count = extents(node.args[states].shape[:1], scalar=True)
    return Call("Loop", (count, constant(True), *node.args[:states]), {"body": step}, opset)


def _decaying():
    """s' = a s + x; the output is s' w."""
    s, a, x, w = (variable(f"x{i}", Tensor("float32", (3,))) for i in range(4))
    new = add.term(mul.term(a, s), x)
    return Graph((s, a, x, w), (new, mul.term(new, w)))


for backward, counted in ((0, 0), (1, 0), (0, 1)):
    scan.example(
        "float32[3]",
        "float32[4,3]",
        "float32[4,3]",
        "float32[3]",
        body=_decaying(),
        states=1,
        sequences=2,
        backward=backward,
        counted=counted,
    )
