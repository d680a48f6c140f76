"""Run an artifact: load it, keep its KV cache, sample, turn tokens into text; no compiler here."""
