"""Compile Qwen3 checkpoints into INT4 libraries, one per device."""

__version__ = "0.1.0"
