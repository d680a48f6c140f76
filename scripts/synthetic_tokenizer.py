"""A byte-level BPE tokenizer for a vocabulary of any size, without training.

Ids 0..255 are the bytes, then come words of a..z built by merging, shortest first, and the
special tokens at the end. Any text encodes, any ids decode.
"""

import itertools
import string
from collections.abc import Iterator
from typing import Final

from mlc_compile.errors import ConfigError

PRINTABLE: Final = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
SPECIAL: Final = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")  # the last ids, in this order
CHAT_TEMPLATE: Final = (
    "{%- for m in messages %}"
    "{{- '<|im_start|>' + m['role'] + '\\n' + m['content'] + '<|im_end|>\\n' }}"
    "{%- endfor %}"
    "{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n' }}{%- endif %}"
)
WORDS: Final = r" ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+"  # a word takes its leading space along
ADDED: Final = {
    "single_word": False,
    "lstrip": False,
    "rstrip": False,
    "normalized": False,
    "special": True,
}


def tokenizer(vocab: int) -> dict[str, object]:
    """`tokenizer.json`: bytes, then short words by merging, then the special tokens at the end."""
    letters = byte_alphabet()
    merges = list(itertools.islice(word_merges(), max(0, vocab - len(letters) - len(SPECIAL))))
    tokens = [*letters, *(left + right for left, right in merges)]
    if len(tokens) + len(SPECIAL) != vocab:
        raise ConfigError(
            f"a vocabulary of {vocab} cannot be covered",
            hint=f"at least {len(letters) + len(SPECIAL)} ids are needed",
        )
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [
            {"id": special_id(text, vocab), "content": text, **ADDED} for text in SPECIAL
        ],
        "normalizer": {"type": "NFC"},
        "pre_tokenizer": {
            "type": "Sequence",
            "pretokenizers": [
                {
                    "type": "Split",
                    "pattern": {"Regex": WORDS},
                    "behavior": "Isolated",
                    "invert": False,
                },
                {
                    "type": "ByteLevel",
                    "add_prefix_space": False,
                    "trim_offsets": True,
                    "use_regex": False,
                },
            ],
        },
        "post_processor": None,
        "decoder": {
            "type": "ByteLevel",
            "add_prefix_space": True,
            "trim_offsets": True,
            "use_regex": True,
        },
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": None,
            "continuing_subword_prefix": "",
            "end_of_word_suffix": "",
            "fuse_unk": False,
            "byte_fallback": False,
            "ignore_merges": False,
            "vocab": {token: i for i, token in enumerate(tokens)},
            "merges": [list(pair) for pair in merges],
        },
    }


def tokenizer_config(vocab: int, context: int) -> dict[str, object]:
    """`tokenizer_config.json`, with a ChatML template."""
    return {
        "add_bos_token": False,
        "add_prefix_space": False,
        "added_tokens_decoder": {
            str(special_id(text, vocab)): {"content": text, **ADDED} for text in SPECIAL
        },
        "bos_token": None,
        "chat_template": CHAT_TEMPLATE,
        "clean_up_tokenization_spaces": False,
        "eos_token": "<|im_end|>",
        "errors": "replace",
        "model_max_length": context,
        "pad_token": "<|endoftext|>",
        "split_special_tokens": False,
        "tokenizer_class": "Qwen2Tokenizer",
        "unk_token": None,
    }


def byte_alphabet() -> list[str]:
    """GPT-2's 256 letters, one a byte: the printable ones, and U+0100 upwards for the rest."""
    rest = itertools.count(0x100)
    return [chr(b) if b in PRINTABLE else chr(next(rest)) for b in range(0x100)]


def word_merges() -> Iterator[tuple[str, str]]:
    """Merges that spell every word of a..z, with or without a leading space, shortest first."""
    space = byte_alphabet()[ord(" ")]
    words = [space, *string.ascii_lowercase]
    while True:
        pairs = [(word, letter) for word in words for letter in string.ascii_lowercase]
        yield from pairs
        words = [word + letter for word, letter in pairs]


def special_id(text: str, vocab: int) -> int:
    """The id of a special token: they are the last of the vocabulary."""
    return vocab - len(SPECIAL) + SPECIAL.index(text)
