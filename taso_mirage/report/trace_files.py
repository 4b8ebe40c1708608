"""The files of a trace: graphs as text that `parse_graph` reads back, an index of them, and a list
of weights."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path

from taso_mirage.errors import OutputError
from taso_mirage.ir.model import Model, StoredWeight, Weight
from taso_mirage.ir.terms import Graph, Node, topological
from taso_mirage.onnx_io.content import array_digest
from taso_mirage.onnx_io.content_terms import Opened
from taso_mirage.report.identifiers import identifiers
from taso_mirage.rewriting.text import show_graph
from taso_mirage.system.terminal import one_line

INDEX, WEIGHTS = "index.tsv", "weights.tsv"
COLUMNS = ("file", "stage", "candidate", "rule", "place", "terms", "predicted_s", "seconds")
WEIGHT_COLUMNS = ("weight", "dtype", "shape", "sha256", "from")


class TraceFiles:
    """The files of one optimization in a folder, which is new or empty.

    Weights are named in the graphs and listed once, with the digests of their arrays.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._views: dict[int, Opened] = {}
        self._listed: set[str] = set()
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise OutputError(f"cannot write into {folder}: {error.strerror or error}; name another folder") from None
        self._add(INDEX, COLUMNS)
        self._add(WEIGHTS, WEIGHT_COLUMNS)

    def index(self, row: Mapping[str, str]) -> None:
        """Add a row to the index, by its columns; those left out are empty."""
        self._add(INDEX, [row.get(column, "") for column in COLUMNS])

    def write(self, name: str, text: str) -> None:
        """Write one file, in the folder or in one inside it."""
        path = self.folder / name
        try:
            path.parent.mkdir(exist_ok=True)
            path.write_text(text, encoding="utf-8", errors="replace")
        except OSError as error:
            raise OutputError(f"cannot write {path}: {error.strerror or error}") from None

    def text(
        self, model: Model, outputs: tuple[Node, ...], weights: Mapping[str, Weight], names: Mapping[Node, str]
    ) -> str:
        """The graph of a model's inputs and some outputs, with its weights listed.

        The text of a node without a definition is its content; its bodies' outputs are its
        operands.
        """
        view = self._view(model, weights)
        nodes = topological(outputs)
        named = {n.attr("name") for n in nodes if n.op == "weight"}
        view.names |= {name: name for name in named}
        opened = view(nodes)
        graph = Graph(model.graph.inputs, view(outputs))
        self._list({name: weights[name] for name in named} | view.arrays)
        called = {new: names[old] for old, new in zip(nodes, opened, strict=True) if old in names}
        return show_graph(graph, names=identifiers(graph, called), short=True)

    def _view(self, model: Model, weights: Mapping[str, Weight]) -> Opened:
        """The terms of all graphs with a model's functions."""
        key = id(model.header)
        if key not in self._views:
            self._views[key] = Opened(model.with_graph(model.graph.outputs, weights), weights)
        return self._views[key]

    def _list(self, weights: Mapping[str, Weight]) -> None:
        for name in sorted(weights.keys() - self._listed):
            self._listed.add(name)
            array = weights[name].numpy()
            source = "computed" if isinstance(weights[name], StoredWeight) else "the model"
            self._add(WEIGHTS, [name, array.dtype.name, str(list(array.shape)), array_digest(array), source])

    def _add(self, name: str, row: Iterable[str]) -> None:
        path = self.folder / name
        try:
            with path.open("a", encoding="utf-8", errors="replace") as file:
                file.write("\t".join(one_line(cell).replace("\t", "\\t") for cell in row) + "\n")
        except OSError as error:
            raise OutputError(f"cannot write {path}: {error.strerror or error}") from None
