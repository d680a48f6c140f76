"""CUDA libraries: the emitter, the compilers it may take, and what its kernels cost a device."""
