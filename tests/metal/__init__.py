"""Metal kernels, read and run without a Mac."""
