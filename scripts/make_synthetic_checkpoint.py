"""Write a Qwen3 checkpoint of a given shape with seeded random weights, in the Hugging Face layout.

    python scripts/make_synthetic_checkpoint.py qwen3-0.6b -o /tmp/qwen3-0.6b

Shapes are `configs/models/*.toml`. Weights are BF16, normal(0, 0.02), norms are 1: it says
nothing sensible, but it takes the time and the memory of the real model. Its tokenizer is a
byte-level BPE over every id, so `build`, `run` and `chat` work on it. A slice of one tensor
is in memory at a time.
"""

import argparse
import json
import math
import sys
import tomllib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, Final

try:
    import ml_dtypes
    import msgspec
    import numpy as np

    from mlc_compile.errors import ConfigError, EnvironmentError_, MlcError, near_matches
    from mlc_compile.model import load_config
    from mlc_compile.model.weights import WeightSpec, weight_specs
    from mlc_compile.staging import staged
    from mlc_compile.target import config_dir
    from synthetic_tokenizer import special_id, tokenizer, tokenizer_config
except ModuleNotFoundError as e:
    sys.exit(
        f"error: {e.name} is not installed for {sys.executable}\n"
        " hint: run it with the environment that has mlc_compile: .venv/bin/python"
    )

DEVIATION: Final = 0.02
SHARD_BYTES: Final = 2 << 30
SLICE: Final = 1 << 24  # elements drawn at once: 64 MiB in float32
BF16_BYTES: Final = 2


class Shape(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One file of `configs/models/`, in Hugging Face's names."""

    hidden_size: int
    num_hidden_layers: int
    num_attention_heads: int
    num_key_value_heads: int
    head_dim: int
    intermediate_size: int
    vocab_size: int
    max_position_embeddings: int
    rope_theta: float
    rms_norm_eps: float
    tie_word_embeddings: bool


@dataclass(frozen=True, slots=True)
class Shard:
    """One safetensors file: its tensors in order, each with its place in the model."""

    tensors: tuple[tuple[int, WeightSpec], ...]

    def header(self) -> bytes:
        """The safetensors header, padded so that the data begin at a multiple of 8."""
        table: dict[str, object] = {"__metadata__": {"format": "pt"}}
        start = 0
        for _, spec in self.tensors:
            end = start + nbytes(spec)
            table[spec.name] = {
                "dtype": "BF16",
                "shape": list(spec.shape),
                "data_offsets": [start, end],
            }
            start = end
        text = json.dumps(table, separators=(",", ":")).encode()
        text += b" " * (-len(text) % 8)
        return len(text).to_bytes(8, "little") + text


def main() -> int:
    """Parse the arguments and write one checkpoint; the exit code."""
    parser = argparse.ArgumentParser(
        description="Write a Qwen3 checkpoint with seeded random weights."
    )
    parser.add_argument("shape", help=f"one of {', '.join(shape_names())}")
    parser.add_argument("-o", "--out", type=Path, required=True, help="directory to write")
    parser.add_argument("--seed", type=int, default=0, help="default 0")
    arguments = parser.parse_args()
    try:
        write_checkpoint(read_shape(arguments.shape), arguments.out, arguments.seed)
    except MlcError as e:
        print(f"error: {e}\n hint: {e.hint}", file=sys.stderr)
        return e.exit_code
    except OSError as e:
        where = f"{e.filename}: " if e.filename else ""
        print(f"error: {where}{(e.strerror or str(e)).lower()}", file=sys.stderr)
        return EnvironmentError_.exit_code
    print(arguments.out)
    return 0


def shape_names() -> list[str]:
    """The shapes there are."""
    return sorted(path.stem for path in (config_dir() / "models").glob("*.toml"))


def read_shape(name: str) -> Shape:
    """One shape by name; ConfigError for a name or a field that we do not know."""
    if name not in shape_names():
        raise ConfigError(f"no model shape {name!r}", hint=near_matches(name, shape_names()))
    path = config_dir() / "models" / f"{name}.toml"
    try:
        return msgspec.convert(tomllib.loads(path.read_text()), Shape, strict=False)
    except (tomllib.TOMLDecodeError, msgspec.ValidationError) as e:
        raise ConfigError(f"{path}: {e}", hint="its keys are Hugging Face's field names") from e


def write_checkpoint(shape: Shape, out: Path, seed: int) -> None:
    """Write config, tokenizer and weights to `out`, which must be new or empty."""
    if out.exists() and not out.is_dir():
        raise ConfigError(f"{out} is a file", hint="choose a new directory with -o")
    if out.exists() and any(out.iterdir()):
        raise ConfigError(f"{out} is not empty", hint="choose a new directory with -o")
    config = hf_config(shape)
    specs = weight_specs(load_config(config, "config.json"), shape.tie_word_embeddings)
    with staged(out) as directory:
        write_json(directory / "config.json", config)
        write_json(directory / "generation_config.json", generation_config(shape.vocab_size))
        write_json(directory / "tokenizer.json", tokenizer(shape.vocab_size))
        write_json(
            directory / "tokenizer_config.json",
            tokenizer_config(shape.vocab_size, shape.max_position_embeddings),
        )
        write_weights(directory, specs, seed)


def hf_config(shape: Shape) -> dict[str, object]:
    """`config.json` as transformers 4 writes it for Qwen3."""
    return {
        "architectures": ["Qwen3ForCausalLM"],
        "model_type": "qwen3",
        **msgspec.structs.asdict(shape),
        "attention_bias": False,
        "attention_dropout": 0.0,
        "bos_token_id": special_id("<|endoftext|>", shape.vocab_size),
        "eos_token_id": special_id("<|im_end|>", shape.vocab_size),
        "hidden_act": "silu",
        "rope_scaling": None,
        "sliding_window": None,
        "use_sliding_window": False,
        "torch_dtype": "bfloat16",
        "use_cache": True,
    }


def generation_config(vocab: int) -> dict[str, object]:
    """Qwen3's sampling, and both tokens that end a text."""
    ends = [special_id("<|im_end|>", vocab), special_id("<|endoftext|>", vocab)]
    return {
        "bos_token_id": ends[1],
        "eos_token_id": ends,
        "do_sample": True,
        "temperature": 0.6,
        "top_k": 20,
        "top_p": 0.95,
    }


def write_weights(directory: Path, specs: Sequence[WeightSpec], seed: int) -> None:
    """One `model.safetensors`, or shards of at most 2 GiB with their index."""
    shards = list(split(specs))
    names = [shard_name(i, len(shards)) for i in range(len(shards))]
    for name, shard in zip(names, shards, strict=True):
        with (directory / name).open("wb") as file:
            file.write(shard.header())
            for index, spec in shard.tensors:
                write_tensor(file, spec, np.random.default_rng([seed, index]))
    if len(shards) > 1:
        index_of = {
            spec.name: name
            for name, shard in zip(names, shards, strict=True)
            for _, spec in shard.tensors
        }
        total = sum(nbytes(spec) for spec in specs)
        write_json(
            directory / "model.safetensors.index.json",
            {"metadata": {"total_size": total}, "weight_map": index_of},
        )


def split(specs: Sequence[WeightSpec]) -> Iterator[Shard]:
    """Fill shards in order; a tensor above the limit has one to itself."""
    current: list[tuple[int, WeightSpec]] = []
    size = 0
    for index, spec in enumerate(specs):
        if current and size + nbytes(spec) > SHARD_BYTES:
            yield Shard(tuple(current))
            current, size = [], 0
        current.append((index, spec))
        size += nbytes(spec)
    yield Shard(tuple(current))


def shard_name(index: int, count: int) -> str:
    """Hugging Face's name of a shard."""
    return "model.safetensors" if count == 1 else f"model-{index + 1:05}-of-{count:05}.safetensors"


def write_tensor(file: BinaryIO, spec: WeightSpec, rng: np.random.Generator) -> None:
    """The tensor's bytes, drawn a slice at a time."""
    left = math.prod(spec.shape)
    while left:
        count = min(left, SLICE)
        values = (
            np.ones(count, np.float32)
            if spec.role == "norm"
            else rng.standard_normal(count, np.float32) * np.float32(DEVIATION)
        )
        file.write(values.astype(ml_dtypes.bfloat16).tobytes())
        left -= count


def nbytes(spec: WeightSpec) -> int:
    """Bytes of a tensor in BF16."""
    return BF16_BYTES * math.prod(spec.shape)


def write_json(path: Path, value: object) -> None:
    """Indented UTF-8."""
    path.write_text(json.dumps(value, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


if __name__ == "__main__":
    sys.exit(main())
