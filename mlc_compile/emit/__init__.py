"""From scheduled IR to a library on disk: a file per backend, and the linkers they share."""
