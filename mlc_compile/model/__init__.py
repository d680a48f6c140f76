"""The model families this version knows, by `model_type`; importing this loads no compiler."""

from collections.abc import Mapping
from typing import Final

from mlc_compile.errors import CheckpointError
from mlc_compile.model.config import Qwen3Config

MODELS: Final = {"qwen3": Qwen3Config}

# Classes of a family whose head is not the language model's.
ARCHITECTURES: Final = {"qwen3": frozenset({"Qwen3ForCausalLM", "Qwen3Model"})}


def load_config(raw: Mapping[str, object], where: str) -> Qwen3Config:
    """The config of any model in `MODELS`, from a decoded config.json that `where` names.

    Raises CheckpointError for another architecture, for weights that are already quantized
    and for whatever the family's own reader refuses.
    """
    family = _family(raw, where)
    _refuse_quantized(raw.get("quantization_config"), where)
    return MODELS[family].from_dict(raw, where)


def _family(raw: Mapping[str, object], where: str) -> str:
    family = raw.get("model_type")
    hint = f"this version knows {', '.join(MODELS)}"
    if not isinstance(family, str):
        raise CheckpointError(f"{where}: model_type is missing", hint=hint)
    if family not in MODELS:
        raise CheckpointError(f"{where}: architecture {family!r} is not supported", hint=hint)
    classes = raw.get("architectures") or []
    foreign = (
        [c for c in classes if c not in ARCHITECTURES[family]]
        if isinstance(classes, list)
        else [classes]
    )
    if foreign:
        raise CheckpointError(f"{where}: architecture {foreign[0]!r} is not supported", hint=hint)
    return family


def _refuse_quantized(table: object, where: str) -> None:
    if not table:
        return
    described = _describe_quantization(table) if isinstance(table, dict) else repr(table)
    raise CheckpointError(
        f"{where}: the weights are already quantized ({described}), which cannot be read",
        hint="give the BF16, F16 or F32 checkpoint that it was made from",
    )


def _describe_quantization(table: dict[str, object]) -> str:
    """Method, bits and group, whether flat (GPTQ, AWQ) or nested (compressed-tensors)."""
    method = table.get("quant_method", "unknown method")
    weights = _compressed_weights(table.get("config_groups")) or table
    bits = weights.get("bits", weights.get("num_bits"))
    group = weights.get("group_size", weights.get("weight_block_size"))
    facts = (method, bits and f"{bits} bits", group and f"group {group}")
    return ", ".join(str(fact) for fact in facts if fact)


def _compressed_weights(groups: object) -> dict[str, object] | None:
    """The weight table of the first group in llm-compressor's schema, if that is what it is."""
    if not isinstance(groups, dict):
        return None
    tables = [g.get("weights") for g in groups.values() if isinstance(g, dict)]
    return next((t for t in tables if isinstance(t, dict)), None)
