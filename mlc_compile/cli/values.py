"""How a size, a time, a list of numbers and a place to write are given to an option."""

import re
import shlex
from decimal import Decimal
from pathlib import Path
from typing import Final

from mlc_compile.errors import ConfigError

SIZE: Final = re.compile(r"(?P<number>[0-9]{1,9}(\.[0-9]{1,3})?) ?(?P<unit>[A-Za-z]*)")
PREFIXES: Final = "KMGT"
UNITS: Final[dict[str, int]] = {  # bytes, by the unit in capitals
    "B": 1,
    **{f"{prefix}B": 1000**i for i, prefix in enumerate(PREFIXES, 1)},
    **{f"{prefix}IB": 1024**i for i, prefix in enumerate(PREFIXES, 1)},
    **{prefix: 1024**i for i, prefix in enumerate(PREFIXES, 1)},
}
DURATION: Final = re.compile(r"(\d+(?:\.\d+)?)(s|m|h|)")
SECONDS: Final = {"s": 1.0, "m": 60.0, "h": 3600.0}


def size(text: str, option: str) -> int:
    """`"10GiB"` -> 10737418240, `"10GB"` -> 10000000000; ConfigError for what is no size.

    Only 0 needs no unit: 10 would be bytes to one reader, and GiB to another.
    `option` is what the text was given by: an option, or a variable and a "=".
    """
    if text.strip() == "0":
        return 0
    found = SIZE.fullmatch(text.strip())
    if found is None or found["unit"].upper() not in UNITS:
        example = option if option.endswith("=") else f"{option} "
        raise ConfigError(
            f"{option.removesuffix('=')} must be a size, got {text!r}",
            hint=f"for example {example}10GiB, or 10GB; units are B, kB to TB and KiB to TiB",
        )
    return round(Decimal(found["number"]) * UNITS[found["unit"].upper()])


def filled(text: str) -> str:
    """`text`, which names a place: an empty one would silently be the current directory."""
    if text == "":
        raise ValueError(text)  # typer knows whose value it is: see `explained`
    return text


def place(text: str | Path) -> Path:
    """A path that a person gave, or a default; ValueError for an empty one."""
    return Path(text) if isinstance(text, Path) else Path(filled(text))


def require_directory_of(path: Path, name: str) -> None:
    """ConfigError where there is no directory to write `path` into; `name` is of its option."""
    if not path.parent.is_dir():
        raise ConfigError(
            f"{name}: there is no directory {path.parent}",
            hint=f"mkdir -p {shlex.quote(str(path.parent))}",
        )


def numbers(text: str, option: str, example: str = "128,512") -> tuple[int, ...]:
    """`"128,512"` -> (128, 512), each 0 or more; the empty text is no number."""
    items = [item.strip() for item in text.split(",") if item.strip()]
    if not all(item.isascii() and item.isdecimal() and len(item) < 10 for item in items):
        raise ConfigError(
            f"{option} must be numbers separated by commas, got {text!r}",
            hint=f"for example {option} {example}",
        )
    return tuple(int(item) for item in items)


def duration(text: str, option: str) -> float:
    """`"20m"` -> 1200.0; ConfigError for what is no time, or none at all."""
    found = DURATION.fullmatch(text.strip())
    hint = f"for example {option} 20m, or 1h; units are s, m and h"
    if found is None:
        raise ConfigError(f"{option} must be a time, got {text!r}", hint=hint)
    if not found[2]:
        raise ConfigError(f"{option} needs a unit, got {text!r}", hint=hint)
    seconds = float(found[1]) * SECONDS[found[2]]
    if seconds <= 0:
        raise ConfigError(f"{option} must be more than zero", hint=hint)
    return seconds
