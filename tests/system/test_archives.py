"""Archives and arrays with something wrong: one line and the exit code of an option, and never more
memory than the file accounts for."""

from __future__ import annotations

import io
import zipfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from commandline import one_line, run
from fuzz.archives import damaged, header, packed
from small_models import relus

from taso_mirage.errors import InvalidOption
from taso_mirage.measure.cache_file import import_cache
from taso_mirage.system import archives
from taso_mirage.system.archives import BadArchive, opened_archive, read_arrays

HUGE = 2**40


@pytest.mark.parametrize("write", [np.savez, np.savez_compressed])
def test_what_numpy_writes_is_read(tmp_path: Path, write: Callable[..., None]) -> None:
    arrays = {
        "x": np.arange(6, dtype=np.float32).reshape(2, 3),
        "turned": np.arange(6, dtype=">i4").reshape(2, 3).T,
        "scalar": np.float64(1.5),
        "empty": np.zeros((0, 3), np.int8),
        "bits": np.array([True, False]),
        "texts": np.array(["a", "\u00e4"]),
        "halves": np.ones(3, np.float16),
    }
    write(tmp_path / "a.npz", **arrays)
    found = read_arrays(tmp_path / "a.npz")
    assert found.keys() == arrays.keys()
    for name, array in arrays.items():
        np.testing.assert_array_equal(found[name], array)
        assert (found[name].dtype, found[name].shape) == (np.asarray(array).dtype, np.asarray(array).shape)


X = np.arange(6, dtype=np.float32).reshape(2, 3)


def npy(text: str, content: bytes = X.tobytes(), version: int = 1) -> bytes:
    return packed({"x.npy": header(text, version) + content})


def objects() -> bytes:
    made = io.BytesIO()
    np.savez(made, x=np.array([{}, None], object))
    return made.getvalue()


def by(method: int) -> bytes:
    made = io.BytesIO()
    np.save(made, X)
    return packed({"x.npy": made.getvalue()}, method)


WHOLE = "{'descr': '<f4', 'fortran_order': False, 'shape': (2, 3), }"
BAD = {
    "empty": (b"", "it is no archive"),
    "no archive": (b"PK\x03\x04 no archive", "it is no archive"),
    "an array alone": (header(WHOLE) + X.tobytes(), "it is no archive"),
    "objects": (objects(), "Python objects"),
    "huge": (npy(WHOLE.replace("(2, 3)", f"({HUGE},)")), f"would need {4 * HUGE}"),
    "huge by one": (npy(WHOLE.replace("(2, 3)", f"({HUGE}, 0, {HUGE})"), b""), "x|array"),
    "negative": (npy(WHOLE.replace("(2, 3)", "(-2, -3)")), "has the shape"),
    "longer": (npy(WHOLE, X.tobytes() + b"1"), "has 25 bytes"),
    "no header": (npy(""), "is no array"),
    "half a header": (npy(WHOLE[:20]), "is no array"),
    "no token": (npy(WHOLE.replace("'<f4'", "'<f4")), "is no array"),
    "deep": (npy("(" * 3000), "is no array"),
    "signs": (npy("-" * 9000 + "1"), "is no array"),
    "code": (npy("__import__('os')._exit(9)"), "is no array"),
    "no dtype": (npy(WHOLE.replace("<f4", "<q9")), "is no array"),
    "version": (npy(WHOLE, version=3), "is no array"),
    "lzma": (by(zipfile.ZIP_LZMA), "method 14"),
    "bzip2": (by(zipfile.ZIP_BZIP2), "method 12"),
}


@pytest.mark.parametrize(("content", "said"), BAD.values(), ids=BAD.keys())
def test_what_is_no_array_is_one_line(tmp_path: Path, content: bytes, said: str) -> None:
    relus(tmp_path / "m.onnx", 2)
    (tmp_path / "in.npz").write_bytes(content)
    with pytest.raises(BadArchive, match=said):
        read_arrays(tmp_path / "in.npz")
    done = run("optimize", tmp_path / "m.onnx", "--inputs", tmp_path / "in.npz", check=2)
    assert "not a readable .npz file" in one_line(done)


def test_nothing_is_read_of_a_bomb(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(archives, "LARGEST", 1 << 20)
    for count in (1, 20):
        made = packed({f"{i}.npy": bytes((1 << 24) // count) for i in range(count)}, zipfile.ZIP_DEFLATED)
        (tmp_path / "a.zip").write_bytes(made)
        with pytest.raises(BadArchive, match="it holds 16777"), opened_archive(tmp_path / "a.zip", archives.LARGEST):
            pass


@pytest.mark.parametrize(
    ("place", "value", "said"), [(8, 1, "encrypted"), (10, 99, "the method 99"), (6, 90, "zip file version 9.0")]
)
def test_an_archive_that_wants_what_is_not_read(tmp_path: Path, place: int, value: int, said: str) -> None:
    content = bytearray(packed({"x.npy": b"1"}))
    start = content.index(b"PK\x01\x02")
    content[start + place] = value
    (tmp_path / "a.zip").write_bytes(content)
    with pytest.raises(BadArchive, match=said), opened_archive(tmp_path / "a.zip") as archive:
        archive.read("x.npy")


@pytest.mark.filterwarnings("ignore:Duplicate name")
@pytest.mark.parametrize("names", [("x.npy", "x.npy"), ("x", "x.npy")])
def test_two_arrays_have_two_names(tmp_path: Path, names: tuple[str, str]) -> None:
    array = header(WHOLE) + X.tobytes()
    with zipfile.ZipFile(tmp_path / "a.npz", "w") as made:
        for name in names:
            made.writestr(name, array)
    with pytest.raises(BadArchive, match="it has two"):
        read_arrays(tmp_path / "a.npz")


def refusal(read: Callable[[], object]) -> str:
    """Why a file is refused; nothing where it is read."""
    try:
        read()
    except (BadArchive, InvalidOption) as error:
        return str(error)
    return ""


@pytest.mark.parametrize("method", [zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED, zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA])
def test_a_damaged_cache_is_one_line(tmp_path: Path, method: int) -> None:
    """Each byte of the packed content is another one, in turn."""
    whole = packed({"manifest.json": b'{"format": 1}', "costs.jsonl": b'["a", "b", 1.0]\n' * 20}, method)
    for place in range(0, len(whole), 5):
        (tmp_path / "c.zip").write_bytes(whole[:place] + bytes([whole[place] ^ 0x55]) + whole[place + 1 :])
        said = refusal(lambda: import_cache(tmp_path / "c.zip", tmp_path / "there"))
        assert "\n" not in said


def test_archives_of_seeds(tmp_path: Path) -> None:
    """A damaged archive is read, or refused with one reason."""
    said = []
    for seed in range(300):
        (tmp_path / "a.npz").write_bytes(damaged(seed))
        said.append(refusal(lambda: read_arrays(tmp_path / "a.npz")))
    assert not [each for each in said if "\n" in each]
    assert 150 < sum(map(bool, said)) < 300
