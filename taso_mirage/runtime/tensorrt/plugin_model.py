"""The model that TensorRT reads: custom nodes become plugin nodes; and the same model without them,
their functions inlined."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path

import onnx
import onnx.inliner
import onnx.shape_inference
from onnx import external_data_helper

from taso_mirage.errors import InvalidModel, Unsupported
from taso_mirage.onnx_io.files import EXTERNAL_ABOVE, save_proto
from taso_mirage.runtime.tensorrt.plugin_attributes import PluginKernel, kernel
from taso_mirage.runtime.tensorrt.plugin_source import NAMESPACE

_Shapes = Mapping[str, Sequence[int]]
VERSION = "1"
"""The version of the plugins, as TensorRT's registry requires it."""
TRITON = f"{NAMESPACE}.triton."
"""The prefix of the metadata key of a kernel's source."""


@dataclass(frozen=True, slots=True)
class Models:
    """`plugin` is for TensorRT with the plugin library, `reference` is plain ONNX; large weights of
    both are still in files beside the original. `kernels` are by the plugins' names, `sources` in
    Triton by a file's name, to be read by people. `refused`: the kernels that TensorRT cannot take,
    which are operators in both, and why."""

    plugin: onnx.ModelProto
    reference: onnx.ModelProto
    kernels: dict[str, PluginKernel]
    sources: dict[str, str]
    refused: dict[str, str]

    @property
    def foreign(self) -> list[str]:
        """Operators that are neither ONNX's nor plugins of this export: TensorRT needs other
        plugins for them."""
        nodes = _nodes(self.plugin.graph)
        return sorted({f"{n.domain}.{n.op_type}" for n in nodes if n.domain not in ("", "ai.onnx", NAMESPACE)})


def models(path: Path, shapes: _Shapes) -> Models:
    """The two models of an optimized one. `shapes` are the sizes of its inputs, by name.

    Raises InvalidModel where the file has no custom nodes, and Unsupported where none can be a
    plugin.
    """
    proto = _called(onnx.load(path, load_external_data=False))
    _fix(proto, shapes)
    reference = _inlined(proto)
    known = _shapes(reference)
    found, refused = _plugins(proto, known)
    if refused:
        proto = _without(proto, list(refused))
        found, _ = _plugins(proto, known)
    if not found and refused:
        raise Unsupported(next(iter(refused.values())))
    if not found:
        raise InvalidModel(
            f"{path} has no fused kernels for CUDA (nodes of the domain {NAMESPACE!r}); "
            "`taso-mirage optimize --target cuda --kernels search` puts them into a model"
        )
    kernels = _named([made for _, made in found])
    for node, made in found:
        _rename(node, made, kernels)
    sources = _sources(proto)
    _drop(proto)
    _drop(reference)
    return Models(proto, reference, kernels, sources, refused)


def _called(proto: onnx.ModelProto) -> onnx.ModelProto:
    """The model with every kernel's node in place of its call, without the functions of NAMESPACE
    around them. Functions with their own attributes stay."""
    return _without(proto, [f.name for f in proto.functions if f.domain == NAMESPACE and not f.attribute])


def _without(proto: onnx.ModelProto, names: Sequence[str]) -> onnx.ModelProto:
    """The model with these functions of NAMESPACE inlined."""
    try:
        chosen = [(NAMESPACE, name) for name in names]
        return onnx.inliner.inline_selected_functions(proto, chosen) if chosen else proto
    except Exception as error:  # protobuf above 2 GB, or a function that does not fit
        raise InvalidModel(f"the functions cannot be inlined: {error}") from None


def _plugins(
    proto: onnx.ModelProto, known: _Shapes
) -> tuple[list[tuple[onnx.NodeProto, PluginKernel]], dict[str, str]]:
    """The nodes that can be plugins with their kernels, and the names of the functions of those
    that cannot, with the reasons."""
    found, refused = [], dict[str, str]()
    for node in _custom_nodes(proto):
        try:
            found.append((node, _kernel(node, known)))
        except Unsupported as error:
            refused.setdefault(node.op_type, str(error))
    return found, refused


def _sources(proto: onnx.ModelProto) -> dict[str, str]:
    """The kernels' Triton code, as the metadata has it.

    A text that is no name of a kernel could be a path, so it is left out.
    """
    found = {p.key.removeprefix(TRITON): p.value for p in proto.metadata_props if p.key.startswith(TRITON)}
    return {f"{name}.py": text for name, text in found.items() if name.isidentifier()}


def _drop(proto: onnx.ModelProto) -> None:
    """Leave out data that only the custom-operator library reads: functions, sources."""
    functions = [function for function in proto.functions if function.domain != NAMESPACE]
    del proto.functions[:]
    proto.functions.extend(functions)
    metadata = [each for each in proto.metadata_props if not each.key.startswith(f"{NAMESPACE}.")]
    del proto.metadata_props[:]
    proto.metadata_props.extend(metadata)


def _kernel(node: onnx.NodeProto, known: _Shapes) -> PluginKernel:
    attributes = {a.name: a.s.decode(errors="replace") for a in node.attribute if a.type == onnx.AttributeProto.STRING}
    return kernel(node.name or node.output[0], attributes, [known.get(name) for name in node.input])


def _named(found: Iterable[PluginKernel]) -> dict[str, PluginKernel]:
    """Equal kernels are one plugin.

    The names are those of no other set of kernels, so that two libraries can be loaded.
    """
    distinct = {made.digest: made for made in found}
    tag = blake2b("".join(distinct).encode(), digest_size=4).hexdigest()
    return {f"Kernel{i}_{tag}": made for i, made in enumerate(distinct.values())}


def _rename(node: onnx.NodeProto, made: PluginKernel, kernels: Mapping[str, PluginKernel]) -> None:
    """Make a node one of a plugin, its attributes the plugin's fields."""
    node.op_type = next(name for name, known in kernels.items() if known.digest == made.digest)
    del node.attribute[:]
    fields = {"digest": made.digest, "plugin_namespace": NAMESPACE, "plugin_version": VERSION, "aot": 1}
    node.attribute.extend(onnx.helper.make_attribute(key, value) for key, value in fields.items())


def _custom_nodes(proto: onnx.ModelProto) -> Iterator[onnx.NodeProto]:
    outside = (function for function in proto.functions if function.domain != NAMESPACE)
    for graph in (proto.graph, *outside):
        for node in _nodes(graph):
            if node.domain == NAMESPACE:
                yield node


def _nodes(graph: onnx.GraphProto | onnx.FunctionProto) -> Iterator[onnx.NodeProto]:
    for node in graph.node:
        yield node
        for attribute in node.attribute:
            for inner in (*attribute.graphs, *([attribute.g] if attribute.HasField("g") else [])):
                yield from _nodes(inner)


def _fix(proto: onnx.ModelProto, shapes: _Shapes) -> None:
    """Give dynamic dims their sizes: those of inputs, and those of the same name elsewhere."""
    sizes: dict[str, int] = {}
    for info in proto.graph.input:
        for dim, n in zip(info.type.tensor_type.shape.dim, shapes.get(info.name, ()), strict=False):
            sizes[dim.dim_param] = n
            dim.dim_value = n
    for info in (*proto.graph.output, *proto.graph.value_info):
        for dim in info.type.tensor_type.shape.dim:
            if dim.dim_param and dim.dim_param in sizes:
                dim.dim_value = sizes[dim.dim_param]


def _inlined(proto: onnx.ModelProto) -> onnx.ModelProto:
    names = {(f.domain, f.name) for f in proto.functions}
    for node in _custom_nodes(proto):
        if (node.domain, node.op_type) not in names:
            raise InvalidModel(f"{node.name or node.op_type}: the model has no function {node.op_type} of {NAMESPACE}")
    try:
        made = onnx.inliner.inline_local_functions(proto)
    except Exception as error:  # as above
        raise InvalidModel(f"the functions cannot be inlined: {error}") from None
    kept = [opset for opset in made.opset_import if opset.domain != NAMESPACE]
    del made.opset_import[:]
    made.opset_import.extend(kept)
    return made


def _shapes(reference: onnx.ModelProto) -> dict[str, tuple[int, ...]]:
    """Sizes of all tensors that have fixed ones, by name."""
    graph = onnx.shape_inference.infer_shapes(reference, data_prop=True).graph
    found = {tensor.name: tuple(tensor.dims) for tensor in graph.initializer}
    for info in (*graph.input, *graph.output, *graph.value_info):
        dims = info.type.tensor_type.shape.dim
        if info.type.tensor_type.HasField("shape") and all(dim.HasField("dim_value") for dim in dims):
            found[info.name] = tuple(dim.dim_value for dim in dims)
    return found


def write_model(proto: onnx.ModelProto, path: Path, base: Path) -> None:
    """Save a model whose external weights are beside `base`; large ones go beside the new file.

    OutputError where that fails.
    """
    external_data_helper.load_external_data_for_model(proto, str(base.parent))
    large = sum(len(tensor.raw_data) for tensor in proto.graph.initializer) > EXTERNAL_ABOVE
    save_proto(proto, path, large)
