"""Draws the pictures of the README and of these pages: `python docs/pictures.py [FOLDER]`.

Each picture is drawn from its subject: a change that `optimize` makes to the model of the
repository, a rule of the library, a kernel that the search finds, a corrected mutant, the list of
stages. With `--report`, Chromium takes pictures of a report and of the page about it instead, at
three widths, light and dark; the times are those of the machine.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import onnx

import taso_mirage
from taso_mirage.ir.terms import Graph, Tensor, topological, variable, weight
from taso_mirage.operators.ops import term
from taso_mirage.pipeline.stages import FINISH, KERNELS, SEARCH
from taso_mirage.report.drawing import draw, draw_change
from taso_mirage.rewriting.library import load_rules
from taso_mirage.search.partial.candidates import CorrectedMutant, candidates

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
    """A norm and the product behind it, and the program of one block of the kernel that the search
    finds for them."""
    goal = taso_mirage.new_graph()
    x, w = goal.new_input(dims=(16, 256), name="X"), goal.new_input(dims=(256, 128), name="W")
    goal.mark_output(goal.matmul(goal.rms_norm(x), w))
    found = goal.superoptimize(best=1)[0].graph.outputs[0]
    return draw_change(
        goal.graph(), found.attr("body"), "A norm with a product, and what one block of its kernel computes"
    )


def partial() -> str:
    """A convolution and its smallest mutant that needs a correction, with that correction."""
    x, w = variable("x", Tensor("float32", (4, 8, 14, 14))), weight("w", Tensor("float32", (16, 8, 3, 3)))
    conv = term("conv", x, w, strides=(1, 1), pads=(1, 1, 1, 1), dilations=(1, 1), group=1)
    before = Graph((x,), (conv,))
    corrected = [each for each in candidates(before) if isinstance(each, CorrectedMutant) and not each.agreement.total]
    smallest = min((each.corrected for each in corrected), key=lambda graph: len(topological(graph.outputs)))
    return draw_change(before, smallest, "A convolution, and a mutant with tiles as images: the seam is corrected")


WIDE, ROW, BOX = 940, 46, 150
"""Width of the picture of stages, height of a row, and width of a box, in pixels."""


def stages() -> str:
    """The stages of `optimize` from top to bottom, each with the values that it takes and gives."""
    rows = [*SEARCH, *KERNELS, *FINISH]
    high = ROW * len(rows) + 30
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDE}" height="{high}" viewBox="0 0 {WIDE} {high}" '
        'font-family="DejaVu Sans Mono, Menlo, Consolas, monospace" font-size="12">',
        '<rect width="100%" height="100%" fill="#ffffff"/>',
    ]
    middle = WIDE - 420
    for i, stage in enumerate(rows):
        top = 15 + i * ROW
        if i:
            lines.append(f'<path d="M{middle},{top - ROW + 30} V{top}" stroke="#666" fill="none"/>')
        lines += [
            f'<rect x="{middle - BOX / 2:.0f}" y="{top}" width="{BOX}" height="30" rx="5" fill="#e3edfb" stroke="#4a78b5"/>',
            f'<text x="{middle}" y="{top + 19}" text-anchor="middle" font-weight="bold" fill="#1d3557">{stage.name}</text>',
            f'<text x="{middle - BOX / 2 - 12:.0f}" y="{top + 19}" text-anchor="end" fill="#555">{", ".join(stage.takes)}</text>',
            f'<text x="{middle + BOX / 2 + 12:.0f}" y="{top + 19}" fill="#222">{", ".join(stage.gives)}</text>',
        ]
    return "\n".join([*lines, "</svg>\n"])


PICTURES: dict[str, Callable[[], str]] = {
    "attention": attention,
    "rule": rule,
    "kernel": kernel,
    "partial": partial,
    "stages": stages,
}


def report(folder: Path) -> None:
    """The first screens of the report by `optimize --report` of the repository's model, and of the
    page that describes it."""
    model = ROOT / "models" / "mini_transformer.onnx"
    with tempfile.TemporaryDirectory() as made:
        page, site = Path(made) / "report.html", Path(made) / "site"
        taso_mirage.optimize(model, output=Path(made) / model.name, report=page, kernels="off", budget=60)
        subprocess.run([sys.executable, "-m", "sphinx", "-q", ROOT / "docs", site], check=True)
        for width, height in SIZES:
            for scheme, number in (("light", 1), ("dark", 0)):
                screenshot(page, folder / f"report_{width}_{scheme}.png", width, height, number)
            screenshot(site / "report.html", folder / f"docs_{width}.png", width, height, 1)


SIZES = ((400, 800), (900, 900), (1600, 900))
"""Widths and heights of the pictures, in pixels."""


def screenshot(page: Path, picture: Path, width: int, height: int, scheme: int) -> None:
    """A picture of the page in a frame, because a window is never narrower than 500 pixels; scheme 0
    is dark."""
    frame = page.with_name("frame.html")
    style = f"border: 0; width: {width}px; height: {height}px"
    frame.write_text(
        f'<body style="margin: 0; background: #888; text-align: center"><iframe src="{page.name}" style="{style}"></iframe></body>'
    )
    size = [f"--window-size={max(width, 500)},{height}", "--hide-scrollbars", f"--screenshot={picture}"]
    look = [f"--blink-settings=preferredColorScheme={scheme}", "--virtual-time-budget=5000"]
    command = ["chromium", "--headless", "--no-sandbox", *look, *size, frame.as_uri()]
    subprocess.run(command, check=True, stderr=subprocess.DEVNULL)


def main() -> None:
    if "--report" in sys.argv:
        report(Path(__file__).parent / "pictures")
        return
    folder = Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).parent / "pictures"
    folder.mkdir(parents=True, exist_ok=True)
    for name, drawn in PICTURES.items():
        (folder / f"{name}.svg").write_text(drawn())


if __name__ == "__main__":
    main()
