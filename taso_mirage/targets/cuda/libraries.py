"""The CUDA libraries that came as Python packages."""

from __future__ import annotations

from contextlib import redirect_stdout


def load_libraries() -> None:
    """Find the CUDA libraries that came as Python packages."""
    import io

    import onnxruntime

    if hasattr(onnxruntime, "preload_dlls"):
        with redirect_stdout(io.StringIO()):  # the function prints the libraries that it does not find
            onnxruntime.preload_dlls()
