"""From scheduled IR to a library on disk: a module per backend, and what links for all."""
