"""Draws the pictures of the README and of these pages: `python docs/pictures.py [FOLDER]`.

Each is drawn from what it shows: a change that `optimize` makes to the model of the repository, a
rule of the library, a kernel that the search finds. With `--report`, Chromium takes the picture of
a report instead; its times are those of the machine.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import onnx

import taso_mirage
from taso_mirage.report.drawing import draw, draw_change
from taso_mirage.rewriting.library import load_rules

ROOT = Path(__file__).parent.parent


def attention() -> str:
    """The largest change of the model: the operators that an exporter writes for one attention, and
    the runtime's own."""
    model = onnx.load(ROOT / "models" / "mini_transformer.onnx")
    _, result = taso_mirage.optimize(model, measure=False, explain=True, return_result=True)
    largest = max((each.change for each in result.explanations), key=lambda change: len(list(change.before)))
    places = len(largest.places)
    return draw_change(
        largest.before, largest.after, f"One attention of models/mini_transformer.onnx, in {places} places"
    )


def rule() -> str:
    """A rule of the library with its guard."""
    return draw(next(each for each in load_rules() if each.name.startswith(RULE)))


RULE = "conv.add_to_conv.318b"


def kernel() -> str:
    """A norm and the product behind it, and what one block of the kernel computes that the search
    finds for them."""
    goal = taso_mirage.new_graph()
    x, w = goal.new_input(dims=(16, 256), name="X"), goal.new_input(dims=(256, 128), name="W")
    goal.mark_output(goal.matmul(goal.rms_norm(x), w))
    found = goal.superoptimize(best=1)[0].graph.outputs[0]
    return draw_change(
        goal.graph(), found.attr("body"), "A norm with a product, and what one block of its kernel computes"
    )


PICTURES: dict[str, Callable[[], str]] = {"attention": attention, "rule": rule, "kernel": kernel}


def report(picture: Path) -> None:
    """The first screen of what `optimize --report` writes of the model of the repository."""
    model = ROOT / "models" / "mini_transformer.onnx"
    with tempfile.TemporaryDirectory() as folder:
        page = Path(folder) / "report.html"
        taso_mirage.optimize(model, output=Path(folder) / model.name, report=page, kernels="off")
        size = ["--window-size=1200,1500", "--hide-scrollbars", f"--screenshot={picture}"]
        subprocess.run(["chromium", "--headless", "--no-sandbox", *size, page.as_uri()], check=True)


def main() -> None:
    if "--report" in sys.argv:
        report(Path(__file__).parent / "report.png")
        return
    folder = Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).parent / "pictures"
    folder.mkdir(parents=True, exist_ok=True)
    for name, drawn in PICTURES.items():
        (folder / f"{name}.svg").write_text(drawn())


if __name__ == "__main__":
    main()
