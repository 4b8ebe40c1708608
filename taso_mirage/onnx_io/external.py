"""A model's file and the files of its weights. Each file is opened once, when it is checked; a file
that is later put at one of these paths is never read."""

from __future__ import annotations

import mmap
import os
import stat
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, BinaryIO, Self

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from taso_mirage.errors import InvalidModel

READ = os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_BINARY", 0)
"""Flags with which opening a pipe does not block."""
NO_LINK, FOLDER = getattr(os, "O_NOFOLLOW", 0), getattr(os, "O_DIRECTORY", 0)
BY_FOLDER = os.open in os.supports_dir_fd
"""Whether files can be opened from an open folder: a path is looked up anew each time."""
MAPPED = 1 << 20
"""The number of bytes from which a file is mapped. Smaller files are read, because each map holds a
descriptor."""


class DataFiles:
    """The files beside a model. `folders`: those that they may lie in, with their descriptors, as
    they were when the model was read."""

    def __init__(self, folders: dict[Path, int], place: Path) -> None:
        self._folders, self._place = folders, place
        self._contents: dict[Path, mmap.mmap | bytes] = {}

    @classmethod
    @contextmanager
    def of(cls, *folders: Path) -> Iterator[Self]:
        """Open some folders for reading; locations of weights are relative to the first."""
        opened: dict[Path, int] = {}
        try:
            for folder in folders:
                if folder.resolve() not in opened:
                    opened[folder.resolve()] = os.open(folder, READ | FOLDER) if BY_FOLDER else -1
            yield cls(opened, folders[0])
        finally:
            for number in opened.values():
                if number >= 0:
                    os.close(number)

    def tensor(self, tensor: Any) -> Any:
        """A tensor; if it lies in a file, its bytes must be there and in one of the folders: a
        model and its weights may both be links into one (model hubs)."""
        if not isinstance(checked_tensor(tensor), ir.ExternalTensor):
            return tensor
        folder, file = self._found(tensor)
        content = self._content(tensor, folder, file)
        start, given = tensor.offset or 0, tensor.nbytes if tensor.length is None else tensor.length
        if start < 0 or given < tensor.nbytes:
            raise InvalidModel(
                f"the weight {tensor.name!r} has {given} bytes at {start}; its type needs {tensor.nbytes}"
            )
        if len(content) < start + given:
            raise InvalidModel(
                f"{tensor.location} has {len(content)} bytes; the weight {tensor.name!r} ends at {start + given}: truncated"
            )
        first = next(iter(self._folders)) == folder
        location = Path(tensor.location) if first else file.relative_to(folder)
        return _OpenedTensor(tensor, location, self._place if first else folder, content)

    def beside(self, name: str) -> int:
        """The descriptor of a file in the first folder, or of the target of a link there."""
        number = next(iter(self._folders.values()))
        return os.open(name, READ, dir_fd=number) if BY_FOLDER else os.open(self._place / name, READ)

    def really(self, file: Path) -> os.stat_result:
        """The status of a file in the last folder, without following links."""
        number = [*self._folders.values()][-1]
        return os.stat(file.name, dir_fd=number, follow_symlinks=False) if BY_FOLDER else os.lstat(file)

    def _found(self, tensor: Any) -> tuple[Path, Path]:
        """The folder and the file that a tensor lies in, both without links."""
        location = Path(tensor.location)
        file = (self._place / location).resolve()
        first, *others = self._folders
        inside = [each for each in others if not {"..", "/"} & set(location.parts)]
        folder = next((each for each in (first, *inside) if file.is_relative_to(each)), None)
        if location.is_absolute() or folder is None:
            raise InvalidModel(f"the weight {tensor.name!r} points outside the model's folder: {tensor.location}")
        return folder, file

    def _content(self, tensor: Any, folder: Path, file: Path) -> mmap.mmap | bytes:
        if file not in self._contents:
            try:
                number = self._opened(folder, file)
            except OSError:
                problem = "which is no regular file" if file.exists() else "which is missing beside the model"
                raise InvalidModel(f"the weight {tensor.name!r} is in {tensor.location}, {problem}") from None
            with open(number, "rb") as opened:
                self._contents[file] = _checked_content(opened, tensor)
        return self._contents[file]

    def _opened(self, folder: Path, file: Path) -> int:
        """Open a file below a folder, through folders that are not links. If a link is found now,
        the file was replaced since it was checked."""
        if not BY_FOLDER:
            return os.open(file, READ | NO_LINK)
        at, kept = self._folders[folder], list[int]()
        try:
            *above, name = file.relative_to(folder).parts
            for part in above:
                at = os.open(part, READ | FOLDER | NO_LINK, dir_fd=at)
                kept.append(at)
            return os.open(name, READ | NO_LINK, dir_fd=at)
        finally:
            for number in kept:
                os.close(number)


@contextmanager
def opened_model(path: Path) -> Iterator[tuple[BinaryIO, DataFiles]]:
    """A model's file and the files beside it, also where it really is if it is a link; InvalidModel
    for a file that cannot be opened, or is no regular file."""
    with ExitStack() as stack:
        try:
            real = path.resolve()
            data = stack.enter_context(DataFiles.of(path.parent, real.parent))
            file = stack.enter_context(open(data.beside(path.name), "rb"))
            if not os.path.samestat(os.fstat(file.fileno()), data.really(real)):
                raise InvalidModel(f"{path} is replaced while it is read; wait until its writer is done")
        except OSError as error:
            raise InvalidModel(f"{path}: {error.strerror or error}") from None
        if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
            raise InvalidModel(f"{path} is no regular file (a device, a pipe or a socket)")
        yield file, data


def _checked_content(file: BinaryIO, tensor: Any) -> mmap.mmap | bytes:
    """The content of a file, if it may belong to a model: a regular file with one name."""
    said = os.fstat(file.fileno())
    if not stat.S_ISREG(said.st_mode):
        raise InvalidModel(f"the weight {tensor.name!r} is in {tensor.location}, which is no regular file")
    if said.st_nlink > 1:
        raise InvalidModel(f"{tensor.location} has several hard links, which is not safe to read; copy the file")
    if said.st_size < MAPPED:
        return file.read()
    return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)


def checked_tensor(tensor: Any) -> Any:
    """A tensor that has a dtype, and if it lies in the model as many bytes as its type says, if it
    has bytes; protobuf ends at 2 GB."""
    if tensor.dtype == ir.DataType.UNDEFINED:
        raise InvalidModel(f"the tensor {tensor.name!r} has no dtype")
    if not isinstance(tensor, ir.serde.TensorProtoTensor):
        return tensor
    proto = tensor.raw
    there = len(proto.raw_data) if proto.HasField("raw_data") else None
    if (there is not None and there != tensor.nbytes) or tensor.nbytes >= 2**31:
        given = "" if there is None else f" has {there} bytes;"
        raise InvalidModel(f"the weight {tensor.name!r}{given} of {list(tensor.shape)} it would need {tensor.nbytes}")
    return tensor


class _OpenedTensor(ir.ExternalTensor):  # type: ignore[misc]
    """A weight in a file that is open: onnx-ir's own opens its path at every load."""

    def __init__(self, old: ir.ExternalTensor, location: Path, base: Path, content: mmap.mmap | bytes) -> None:
        super().__init__(
            location,
            old.offset,
            old.length,
            old.dtype,
            shape=old.shape,
            name=old.name or "",
            doc_string=old.doc_string,
            base_dir=base,
        )
        self._content = content
        self._seen: NDArray[Any] | None = None

    def tobytes(self) -> bytes:
        self._check_validity()
        start = self.offset or 0
        return bytes(self._content[start : start + self.nbytes])

    def tofile(self, file: Any) -> None:
        self._check_validity()
        start = self.offset or 0
        file.write(memoryview(self._content)[start : start + self.nbytes])

    def numpy(self) -> NDArray[Any]:
        self._check_validity()
        if self._seen is None:
            self._seen = self._read()
        return self._seen

    def release(self) -> None:
        self._seen = None

    def __array__(self, dtype: Any = None) -> NDArray[Any]:
        return np.asarray(self.numpy(), dtype)

    def _read(self) -> NDArray[Any]:
        """In the bytes of the file, but for types of less than a byte, which are spread."""
        if self.dtype.bitwidth < 8:
            proto = ir.serde.onnx.TensorProto(
                data_type=int(self.dtype), dims=self.shape.numpy(), raw_data=self.tobytes()
            )
            spread: NDArray[Any] = ir.serde.TensorProtoTensor(proto).numpy()
            return spread
        whole = np.dtype(self.dtype.numpy()).newbyteorder("<")
        flat = np.frombuffer(self._content, whole, self.size, self.offset or 0) if self.size else np.empty(0, whole)
        return flat.reshape(self.shape.numpy())
