"""sherpa-onnx' style: a script that exports a streaming model with its states as inputs and
outputs, adds the metadata that the C++ program reads, and writes a second file in 8 bits."""

from pathlib import Path

import onnx
import torch
from onnxruntime.quantization import QuantType, quantize_dynamic

import taso_mirage

CHUNK, FEATURES, STATES = 16, 80, 64


class Encoder(torch.nn.Module):
    """One chunk of features and the state of the chunk before: encodings, and the next state."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = torch.nn.Linear(FEATURES, STATES)
        self.cell = torch.nn.GRU(STATES, STATES, batch_first=True)
        self.norm = torch.nn.LayerNorm(STATES)
        self.out = torch.nn.Linear(STATES, STATES)

    def forward(self, features: torch.Tensor, state: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        encoded, next_state = self.cell(torch.nn.functional.silu(self.embed(features)), state)
        return self.out(self.norm(encoded)), next_state


def add_meta_data(path: Path, meta_data: dict[str, object]) -> None:
    """Write entries into a file, as the C++ program reads them."""
    model = onnx.load(path)
    onnx.helper.set_model_props(model, {name: str(value) for name, value in meta_data.items()})
    onnx.save(model, path)


def main(folder: Path) -> list[Path]:
    """Write `encoder.onnx` and `encoder.int8.onnx`."""
    exported, optimized, small = (folder / f"encoder{end}.onnx" for end in (".exported", "", ".int8"))
    example = torch.zeros(1, CHUNK, FEATURES), torch.zeros(1, 1, STATES)
    names = {"input_names": ["x", "state"], "output_names": ["encoder_out", "next_state"]}
    program = torch.onnx.export(Encoder().eval(), example, dynamo=True, verbose=False, **names)
    assert program is not None
    program.save(exported)
    # before the metadata and the 8 bits, so that both files have it; names and states stay as they are
    taso_mirage.optimize(exported, output=optimized, effort="quick", portable=True)
    add_meta_data(optimized, {"model_type": "gru", "chunk": CHUNK, "version": 1})
    quantize_dynamic(optimized, small, op_types_to_quantize=["MatMul"], weight_type=QuantType.QInt8)
    return [optimized, small]


if __name__ == "__main__":
    print(*main(Path(".")), sep="\n")
