"""Vulkan libraries: the emitter, the payload that holds their shaders, and what those take."""
