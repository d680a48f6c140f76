"""Measure an artifact: speed with its roofline, quality against a reference, and its proof."""
