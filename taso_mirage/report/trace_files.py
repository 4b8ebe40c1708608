"""The files of a trace: graphs as text that `parse_graph` reads back, an index of them, and a list
of weights."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from taso_mirage.errors import OutputError
from taso_mirage.ir.model import Model, StoredWeight, TurnedWeight, Weight
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
        self._rows: dict[str, list[Sequence[str]]] = {INDEX: [COLUMNS], WEIGHTS: [WEIGHT_COLUMNS]}
        self._inside: set[Path] = set()
        self.flush()

    def index(self, row: Mapping[str, str]) -> None:
        """Add a row to the index, by its columns; those left out are empty."""
        self._rows[INDEX].append([row.get(column, "") for column in COLUMNS])

    def flush(self) -> None:
        """Write the rows of the index and of the weights that were added."""
        for name, rows in self._rows.items():
            text = "".join("\t".join(one_line(cell).replace("\t", "\\t") for cell in row) + "\n" for row in rows)
            self.write(name, text, "a")
            rows.clear()

    def write(self, name: str, text: str, mode: str = "x") -> None:
        """Write one file, in the folder or in one inside it; mode "a" adds to it."""
        path = self.folder / name
        try:
            if path.parent not in self._inside:
                path.parent.mkdir(parents=True, exist_ok=True)
                self._inside.add(path.parent)
            with path.open(mode, encoding="utf-8", errors="replace") as file:
                file.write(text)
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
            source = "computed" if isinstance(weights[name], StoredWeight | TurnedWeight) else "the model"
            row = [name, array.dtype.name, str(list(array.shape)), array_digest(array), source]
            self._rows[WEIGHTS].append(row)
