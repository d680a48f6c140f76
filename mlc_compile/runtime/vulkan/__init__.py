"""Vulkan devices for TVM's runtime, whose wheel has none: buffers, launches, and their library.

`loader` finds a GPU and `features` what it has, `buffers`, `commands`, `transfers` and `pipelines`
drive it, `dispatcher` runs one shader on numpy arrays; `device_api` and `modules` are what TVM
asks for by name, and `install` registers them. Needs the PyPI package `vulkan` and the system's
Vulkan loader.
"""
