"""GPU kernel families, for every backend with threads, blocks and shared memory.

A kernel is sized by `target.Device` alone and uses only what all backends have: launches of
one or two dimensions, shared memory, barriers, vectors of up to four. Activations are
float32 in memory; arithmetic on weights is float16 or float32 as a kernel says.
"""
