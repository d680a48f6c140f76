"""Checkpoints made by hand, byte by byte, so that they can also be wrong."""

import json
from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np
import pytest

Arrays = Mapping[str, np.ndarray]
DTYPES = {"uint16": "BF16", "float16": "F16", "float32": "F32"}


def encode_safetensors(arrays: Arrays) -> bytes:
    """A safetensors file; uint16 arrays are taken for BF16."""
    header: dict[str, object] = {"__metadata__": {"format": "pt"}}
    data = b""
    for name, array in arrays.items():
        offsets = [len(data), len(data) + array.nbytes]
        header[name] = {
            "dtype": DTYPES[array.dtype.name],
            "shape": array.shape,
            "data_offsets": offsets,
        }
        data += array.tobytes()
    return frame(header) + data


def frame(header: object) -> bytes:
    """The length and the JSON with which a safetensors file begins."""
    text = json.dumps(header).encode()
    return len(text).to_bytes(8, "little") + text


@pytest.fixture
def model_dir(tmp_path: Path) -> Callable[..., Path]:
    """`model_dir({"model.safetensors": {...}, "x.json": {...}})`, with a config.json besides."""

    def make(files: Mapping[str, object]) -> Path:
        directory = tmp_path / "model"
        directory.mkdir()
        for name, content in {"config.json": {}, **files}.items():
            is_weights = name.endswith(".safetensors") and isinstance(content, dict)
            data = encode_safetensors(content) if is_weights else content
            text = data if isinstance(data, bytes) else json.dumps(data).encode()
            (directory / name).write_bytes(text)
        return directory

    return make
