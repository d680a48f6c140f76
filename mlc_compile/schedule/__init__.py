"""Which kernel runs an operator: rules in tables, hand-written families under `kernels/`."""
