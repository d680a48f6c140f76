"""The WebAssembly runtime that a library for browsers carries: built once, linked to each model."""
