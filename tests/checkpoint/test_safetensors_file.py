"""Reading safetensors: exact values, and no trust in what the header says."""

import json
from pathlib import Path

import numpy as np
import pytest

from mlc_compile.checkpoint.safetensors_file import read_header
from mlc_compile.errors import CheckpointError


def frame(header: object) -> bytes:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return len(text).to_bytes(8, "little") + text


def entry(dtype: str, shape: list[int], begin: int, end: int) -> dict[str, object]:
    return {"dtype": dtype, "shape": shape, "data_offsets": [begin, end]}


def write(path: Path, header: object, data: bytes) -> Path:
    path.write_bytes(frame(header) + data)
    return path


# bits of 1.0, -2.5, the smallest subnormal and infinity, and what they are worth
VALUES = {
    "BF16": (np.array([0x3F80, 0xC020, 0x0001, 0x7F80], "<u2"), [1, -2.5, 2.0**-133, np.inf]),
    "F16": (np.array([0x3C00, 0xC100, 0x0001, 0x7C00], "<u2"), [1, -2.5, 2.0**-24, np.inf]),
    "F32": (np.array([1, -2.5, 2.0**-149, np.inf], "<f4"), [1, -2.5, 2.0**-149, np.inf]),
}


@pytest.mark.parametrize("dtype", VALUES)
def test_each_type_widens_exactly(tmp_path, dtype):
    bits, worth = VALUES[dtype]
    path = write(tmp_path / "f", {"w": entry(dtype, [2, 2], 0, bits.nbytes)}, bits.tobytes())
    w = read_header(path)["w"].read()
    assert w.dtype == np.float32
    np.testing.assert_array_equal(w, np.array(worth, np.float32).reshape(2, 2))


def test_rows_are_those_of_the_whole(tmp_path):
    w = np.arange(35, dtype=np.float32).reshape(7, 5)
    header = {"pad": entry("F16", [1], 0, 2), "w": entry("F32", [7, 5], 2, 142)}
    tensor = read_header(write(tmp_path / "f", header, b"\0\0" + w.tobytes()))["w"]
    np.testing.assert_array_equal(tensor.read_rows(2, 6), w[2:6])
    assert tensor.read_rows(3, 3).shape == (0, 5)


@pytest.mark.parametrize("left", [0, 10, 100])
def test_a_file_that_became_shorter_is_told(tmp_path, left):
    path = write(tmp_path / "f", {"w": entry("F32", [7, 5], 0, 140)}, bytes(140))
    tensor = read_header(path)["w"]
    with path.open("r+b") as file:
        file.truncate(left)
    with pytest.raises(CheckpointError, match="f changed while it was read"):
        tensor.read()


def test_a_scalar_and_an_empty_tensor_keep_their_shapes(tmp_path):
    header = {"empty": entry("F32", [0, 3], 0, 0), "scalar": entry("F32", [], 0, 4)}
    tensors = read_header(write(tmp_path / "f", header, np.float32(7).tobytes()))
    assert tensors["scalar"].read() == 7
    assert tensors["empty"].read().shape == (0, 3)


GOOD = {"a": entry("F32", [2], 0, 8), "b": entry("F16", [2], 8, 12)}

LIES = {
    "longer than its shape": {"a": entry("F32", [2], 0, 12)},
    "shorter than its shape": {"a": entry("F32", [2, 2], 0, 12)},
    "overlap": {"a": entry("F32", [2], 0, 8), "b": entry("F32", [2], 4, 12)},
    "gap": {"a": entry("F32", [1], 0, 4), "b": entry("F32", [1], 8, 12)},
    "backwards": {"a": entry("F32", [3], 12, 0)},
    "before the data": {"a": entry("F32", [3], -12, 0)},
    "shape too large for any memory": {"a": entry("F32", [2**40, 2**40], 0, 12)},
}


@pytest.mark.parametrize("header", LIES.values(), ids=LIES)
def test_a_header_that_lies_is_refused_by_tensor(tmp_path, header):
    with pytest.raises(CheckpointError, match=r"header lies about [ab]"):
        read_header(write(tmp_path / "f", header, bytes(12)))


BROKEN = {
    "cut in the data": (frame(GOOD) + bytes(11), "truncated: its header promises 12.*has 11"),
    "cut in the header": (frame(GOOD)[:-1], "truncated: it ends within its header"),
    "cut in the length": (b"\x10\0\0", "truncated"),
    "empty": (b"", "truncated"),
    "too long": (frame(GOOD) + bytes(13), "1 bytes that its header does not mention"),
    "not JSON": (frame(b"{nope"), "unreadable header"),
    "not an object": (frame([1, 2]), "unreadable header"),
    "an entry without a type": (frame({"a": {"shape": [1]}}), "unreadable header"),
    "a negative extent": (frame({"a": entry("F32", [-1], 0, 4)}) + bytes(4), "unreadable header"),
    "some other file": (b"PK\x03\x04" + b"\xff" * 60, "not a safetensors file"),
    "git-lfs pointer": (b"version https://git-lfs.github.com/spec/v1\noid 1", "git-lfs pointer"),
    "integers": (frame({"q": entry("I32", [1], 0, 4)}) + bytes(4), "q has type I32, must be BF16"),
}


@pytest.mark.parametrize(("data", "told"), BROKEN.values(), ids=BROKEN)
def test_a_broken_file_is_refused_with_the_reason(tmp_path, data, told):
    path = tmp_path / "model.safetensors"
    path.write_bytes(data)
    with pytest.raises(CheckpointError, match=told) as error:
        read_header(path)
    assert error.value.exit_code == 3
    assert str(path) in str(error.value)
    assert error.value.hint
