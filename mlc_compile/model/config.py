"""The `config.json` of a dense Qwen3, read strictly: what we do not understand is an error."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Annotated, Final, Self

import msgspec

from mlc_compile.errors import CheckpointError, listing
from mlc_compile.model.rope import TABLES, Rope, read_rope

Count = Annotated[int, msgspec.Meta(gt=0, lt=2**24)]  # sixteen million of anything
TokenId = Annotated[int, msgspec.Meta(ge=0, lt=2**31)]

MOST_LAYERS: Final = 1024  # a config that asks for more is broken, and would list tensors for ever


@dataclass(frozen=True, slots=True)
class Qwen3Config:
    """The shape and arithmetic of a dense Qwen3, under Hugging Face's names."""

    hidden_size: int
    num_hidden_layers: int
    num_attention_heads: int
    num_key_value_heads: int
    head_dim: int
    intermediate_size: int
    vocab_size: int
    rms_norm_eps: float
    max_position_embeddings: int
    tie_word_embeddings: bool
    bos_token_id: int | None
    eos_token_id: tuple[int, ...]
    rope: Rope

    @property
    def max_context(self) -> int:
        """The longest sequence, in tokens: native positions, or what YaRN stretches them to."""
        return max(self.max_position_embeddings, int(self.rope.original_context * self.rope.factor))

    @classmethod
    def from_dict(cls, raw: Mapping[str, object], where: str) -> Self:
        """Read a decoded config.json; `where` names it in errors.

        Raises CheckpointError for an unknown key, a value of the wrong type or range, a
        feature we do not implement and numbers that contradict one another.
        """
        file = _read(raw, where)
        faults = [message for holds, message in _RULES if not holds(file)]
        if faults:
            values = msgspec.structs.asdict(file)
            told = "; ".join(message.format(**values) for message in faults)
            raise CheckpointError(f"{where}: {told}", hint="compare with the original model's file")
        eos = file.eos_token_id
        return cls(
            hidden_size=file.hidden_size,
            num_hidden_layers=file.num_hidden_layers,
            num_attention_heads=file.num_attention_heads,
            num_key_value_heads=file.num_key_value_heads,
            head_dim=file.head_dim,
            intermediate_size=file.intermediate_size,
            vocab_size=file.vocab_size,
            rms_norm_eps=file.rms_norm_eps,
            max_position_embeddings=file.max_position_embeddings,
            tie_word_embeddings=bool(file.tie_word_embeddings),
            bos_token_id=file.bos_token_id,
            eos_token_id=() if eos is None else (eos,) if isinstance(eos, int) else eos,
            rope=read_rope(raw, file.max_position_embeddings, where),
        )


class _File(msgspec.Struct, frozen=True):
    """The keys that decide the arithmetic. Required ones have no default we would dare to guess."""

    hidden_size: Count
    num_hidden_layers: Annotated[int, msgspec.Meta(gt=0, le=MOST_LAYERS)]
    num_attention_heads: Count
    num_key_value_heads: Count
    head_dim: Count
    intermediate_size: Count
    vocab_size: Count
    rms_norm_eps: Annotated[float, msgspec.Meta(ge=1e-30, lt=1)]
    max_position_embeddings: Count
    tie_word_embeddings: bool | None = None
    bos_token_id: TokenId | None = None
    eos_token_id: TokenId | tuple[TokenId, ...] | None = None
    hidden_act: str = "silu"
    attention_bias: bool = False
    use_sliding_window: bool = False
    sliding_window: int | None = None
    layer_types: tuple[str, ...] | None = None


# Keys that change nothing in what the model computes for a prompt.
_INERT: Final = frozenset(
    {
        "architectures",
        "attention_dropout",
        "chunk_size_feed_forward",
        "dtype",
        "id2label",
        "initializer_range",
        "is_encoder_decoder",
        "label2id",
        "max_window_layers",
        "model_type",
        "output_attentions",
        "output_hidden_states",
        "pad_token_id",
        "problem_type",
        "quantization_config",  # null here: load_config refuses any other
        "return_dict",
        "torch_dtype",
        "transformers_version",
        "unsloth_fixed",
        "unsloth_version",
        "use_cache",
    }
)


def _tokens_in_vocabulary(c: _File) -> bool:
    eos = c.eos_token_id
    ends = eos if isinstance(eos, tuple) else (eos,)
    return all(t is None or t < c.vocab_size for t in (c.bos_token_id, *ends))


# What must hold, and what to say where it does not.
_RULES: Final[tuple[tuple[Callable[[_File], bool], str], ...]] = (
    (
        lambda c: c.num_attention_heads % c.num_key_value_heads == 0,
        "num_attention_heads ({num_attention_heads}) must be a multiple of "
        "num_key_value_heads ({num_key_value_heads})",
    ),
    (lambda c: c.head_dim % 2 == 0, "head_dim must be even for rope, got {head_dim}"),
    (lambda c: c.hidden_act == "silu", "hidden_act must be 'silu', got {hidden_act!r}"),
    (
        lambda c: not c.attention_bias,
        "attention_bias is true, which Qwen3 is not and we do not support",
    ),
    (lambda c: not c.use_sliding_window, "use_sliding_window is true, which is not supported"),
    (
        lambda c: set(c.layer_types or ()) <= {"full_attention"},
        "layer_types must all be 'full_attention', got {layer_types}",
    ),
    (
        lambda c: c.layer_types is None or len(c.layer_types) == c.num_hidden_layers,
        "layer_types does not list num_hidden_layers ({num_hidden_layers}) layers",
    ),
    (
        _tokens_in_vocabulary,
        "bos_token_id ({bos_token_id}) and eos_token_id ({eos_token_id}) must be below "
        "vocab_size ({vocab_size})",
    ),
)


def _read(raw: Mapping[str, object], where: str) -> _File:
    known = {*_File.__struct_fields__, *_INERT, *TABLES, "rope_theta"}
    # transformers keeps its private notes under a leading underscore
    unknown = sorted(key for key in raw if key not in known and not key.startswith("_"))
    if unknown:
        raise CheckpointError(
            f"{where} has keys that this version does not understand: {listing(unknown)}",
            hint="remove those that do not change what the model computes",
        )
    try:
        return msgspec.convert(raw, _File)
    except msgspec.ValidationError as e:
        raise CheckpointError(f"{where}: {e}", hint="compare with the original model's file") from e
