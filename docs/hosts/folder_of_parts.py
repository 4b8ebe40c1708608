"""Optimum's style: a folder with the parts of a model (encoder, decoder), its configuration and its
tokenizer becomes another folder."""

import shutil
from pathlib import Path

import taso_mirage


class PartsOptimizer:
    """The ONNX files of a folder."""

    def __init__(self, folder: Path, file_names: list[str]) -> None:
        self.folder, self.file_names = folder, file_names

    @classmethod
    def from_pretrained(cls, folder: str | Path) -> "PartsOptimizer":
        found = sorted(path.name for path in Path(folder).glob("*.onnx"))
        if not found:
            raise FileNotFoundError(f"{folder} has no ONNX file")
        return cls(Path(folder), found)

    def optimize(self, save_dir: str | Path, file_suffix: str = "optimized", effort: str = "quick") -> Path:
        """Write each part as NAME_SUFFIX.onnx, and copy all other files."""
        save_dir = Path(save_dir)
        save_dir.mkdir(parents=True, exist_ok=True)
        for name in self.file_names:
            target = save_dir / f"{Path(name).stem}_{file_suffix}.onnx"
            taso_mirage.optimize(self.folder / name, output=target, effort=effort)
        for path in self.folder.iterdir():
            if path.is_file() and path.suffix not in (".onnx", ".data"):
                shutil.copy2(path, save_dir)
        return save_dir
