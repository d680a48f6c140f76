"""Graph passes on `mlc.*` and Relax operators: one pass a file, named after it."""
