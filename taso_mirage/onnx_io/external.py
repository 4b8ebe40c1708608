"""A model's file and the files of its weights. Each file is opened once, when it is checked; a file
that is later put at one of these paths is never read."""

from __future__ import annotations

import mmap
import os
import stat
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
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
DESCRIPTORS = Path("/proc/self/fd")
"""The folder in which the system has the open files of a process, by their descriptors."""
MAPPED = 1 << 20
"""The number of bytes from which a file is mapped. Smaller files are read, because each map holds a
descriptor."""


class DataFiles:
    """The files beside a model. `folders`: those that they may lie in, with their descriptors, as
    they were when the model was read."""

    def __init__(self, folders: dict[Path, int], place: Path) -> None:
        self._folders, self._place = folders, place
        self._contents: dict[Path, _Content] = {}

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
        opened = self._content(tensor, folder, file)
        start, given = tensor.offset or 0, tensor.nbytes if tensor.length is None else tensor.length
        if start < 0 or given < tensor.nbytes:
            raise InvalidModel(
                f"the weight {tensor.name!r} has {given} bytes at {start}; its type needs {tensor.nbytes}"
            )
        if len(opened.content) < start + given:
            raise InvalidModel(
                f"{tensor.location} has {len(opened.content)} bytes; the weight {tensor.name!r} ends at {start + given}: truncated"
            )
        first = next(iter(self._folders)) == folder
        location = Path(tensor.location) if first else file.relative_to(folder)
        return _OpenedTensor(tensor, location, self._place if first else folder, opened)

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

    def _content(self, tensor: Any, folder: Path, file: Path) -> _Content:
        if file not in self._contents:
            try:
                number = self._opened(folder, file)
            except OSError:
                problem = "which is no regular file" if file.exists() else "which is missing beside the model"
                raise InvalidModel(f"the weight {tensor.name!r} is in {tensor.location}, {problem}") from None
            with open(number, "rb") as opened:
                self._contents[file] = _checked_content(opened, tensor, file)
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


@dataclass(frozen=True, slots=True, eq=False)
class _Content:
    """The content of a file, with its path and status when it was opened."""

    content: mmap.mmap | bytes
    path: Path
    status: os.stat_result


def _checked_content(file: BinaryIO, tensor: Any, path: Path) -> _Content:
    """The content of a file, if it may belong to a model: a regular file with one name."""
    said = os.fstat(file.fileno())
    if not stat.S_ISREG(said.st_mode):
        raise InvalidModel(f"the weight {tensor.name!r} is in {tensor.location}, which is no regular file")
    if said.st_nlink > 1:
        raise InvalidModel(f"{tensor.location} has several hard links, which is not safe to read; copy the file")
    if said.st_size < MAPPED:
        return _Content(file.read(), path, said)
    return _Content(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ), path, said)


class FilesInPlace:
    """Files that weights are mapped from, which are open for other processes of this user until the
    end of the context."""

    def __init__(self) -> None:
        self._numbers: dict[_Content, int] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for number in self._numbers.values():
            if number >= 0:
                os.close(number)

    def tensor(self, tensor: Any, aligned: int) -> ir.ExternalTensor | None:
        """A weight at its place in its open file, whose location is relative to the root of the
        file system. None unless it is mapped from a multiple of `aligned` bytes on, and its file
        still has its path."""
        if not isinstance(tensor, _OpenedTensor) or (tensor.offset or 0) % aligned:
            return None
        number = self._number(tensor.opened)
        if number < 0:
            return None
        location, options = f"proc/{os.getpid()}/fd/{number}", {"shape": tensor.shape, "doc_string": tensor.doc_string}
        return ir.ExternalTensor(
            location, tensor.offset, tensor.nbytes, tensor.dtype, name=tensor.name or "", **options
        )

    def _number(self, opened: _Content) -> int:
        """The descriptor of a file; -1 where there is none that others can open."""
        if opened not in self._numbers:
            self._numbers[opened] = -1
            if isinstance(opened.content, mmap.mmap) and DESCRIPTORS.is_dir():
                with suppress(OSError):
                    self._numbers[opened] = _again(opened)
        return self._numbers[opened]


class FileOfZeros:
    """A file of zeros of this name, and of `size` bytes, in the place of a model's large weights,
    for a runtime that is not asked to run the model."""

    def __init__(self, name: str) -> None:
        self.name, self.size = name, 0

    def tensor(self, tensor: Any, aligned: int) -> ir.ExternalTensor:
        """A weight of the same type in this file."""
        self.size = max(self.size, tensor.nbytes)
        return ir.ExternalTensor(self.name, 0, tensor.nbytes, tensor.dtype, shape=tensor.shape, name=tensor.name or "")


def _again(opened: _Content) -> int:
    """A new descriptor of a file. Raises OSError where its path now has another one."""
    number = os.open(opened.path, READ | NO_LINK)
    if not os.path.samestat(os.fstat(number), opened.status):
        os.close(number)
        raise FileNotFoundError(opened.path)
    return number


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


def _copied(opened: _Content, start: int, end: int, file: Any) -> int:
    """The number of bytes, from `start` on, that the system copied to the place of another file, so
    that they did not pass through this process; the others are not there yet."""
    done, place = 0, file.tell()
    if end - start < MAPPED or not hasattr(os, "copy_file_range"):
        return done
    with suppress(OSError), open(_again(opened), "rb") as source:
        file.flush()
        ends = source.fileno(), file.fileno()
        while moved := os.copy_file_range(*ends, end - start - done, start + done, place + done):
            done += moved
    file.seek(place + done)
    return done


class _OpenedTensor(ir.ExternalTensor):  # type: ignore[misc]
    """A weight in a file that is open: onnx-ir's own opens its path at every load."""

    def __init__(self, old: ir.ExternalTensor, location: Path, base: Path, opened: _Content) -> None:
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
        self.opened = opened
        self._seen: NDArray[Any] | None = None

    def tobytes(self) -> bytes:
        self._check_validity()
        start = self.offset or 0
        return bytes(self.opened.content[start : start + self.nbytes])

    def tofile(self, file: Any) -> None:
        self._check_validity()
        start, end = self.offset or 0, (self.offset or 0) + self.nbytes
        file.write(memoryview(self.opened.content)[start + _copied(self.opened, start, end, file) : end])

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
        flat = (
            np.frombuffer(self.opened.content, whole, self.size, self.offset or 0) if self.size else np.empty(0, whole)
        )
        return flat.reshape(self.shape.numpy())
