"""Contents of many random models: `python -m fuzz.generated.coverage [COUNT] [SEED]` in `tests/`.

Prints the share that ONNX Runtime loads, the numbers of operators, of pairs of an operator
and one that reads its result, of dtypes and of opsets, and the operators that it runs and no model
has.
"""

from __future__ import annotations

import argparse
from collections import Counter
from collections.abc import Iterator

import onnx
from onnx import TensorProto

from fuzz.generated.bodies import every
from fuzz.generated.kernels import operators
from fuzz.generated.model import model_of
from fuzz.generated.running import session

EXCLUDED = frozenset("Bernoulli Multinomial RandomNormal RandomNormalLike RandomUniform RandomUniformLike".split())
"""Operators whose results are random."""


def pairs(model: onnx.ModelProto) -> Iterator[tuple[str, str]]:
    made: dict[str, str] = {}
    for node in every(model.graph.node):
        yield from ((made[name], label(node)) for name in node.input if name in made)
        made |= dict.fromkeys(node.output, label(node))


def label(node: onnx.NodeProto) -> str:
    return f"{node.domain}.{node.op_type}" if node.domain else node.op_type


def dtypes(model: onnx.ModelProto) -> set[str]:
    infos = [*model.graph.input, *model.graph.output]
    found = {each.type.tensor_type.elem_type for each in infos} | {each.data_type for each in model.graph.initializer}
    return {TensorProto.DataType.Name(each) for each in found if each}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("count", nargs="?", type=int, default=1000)
    parser.add_argument("seed", nargs="?", type=int, default=0)
    options = parser.parse_args()
    nodes, joined, kinds, opsets, bad = Counter[str](), Counter[tuple[str, str]](), Counter[str](), Counter[int](), 0
    for seed in range(options.seed, options.seed + options.count):
        model = model_of(seed)
        called = [node for function in model.functions for node in function.node]
        nodes.update(label(node) for node in every([*model.graph.node, *called]))
        joined.update(pairs(model))
        kinds.update(dtypes(model))
        opsets[next(each.version for each in model.opset_import if each.domain == "")] += 1
        try:
            session(model)
        except Exception as error:  # the runtime's errors are of many classes
            bad += 1
            print(f"{seed}: {str(error)[:300]}")
    print(
        f"{options.count - bad} of {options.count} models load; {sum(nodes.values())} nodes, {len(nodes)} operators, {len(joined)} pairs"
    )
    print("dtypes:", ", ".join(f"{name} {count}" for name, count in kinds.most_common()))
    print("opsets:", ", ".join(f"{version} {count}" for version, count in sorted(opsets.items())))
    print("rarest:", ", ".join(f"{name} {count}" for name, count in nodes.most_common()[-40:]))
    print("none:", " ".join(sorted(operators() - {*nodes} - EXCLUDED)))


if __name__ == "__main__":
    main()
