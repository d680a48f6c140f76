"""From objects to a library: the linker for each target, and the check of what it wrote."""
