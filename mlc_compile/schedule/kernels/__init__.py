"""Hand-written kernel families, one a file: functions of shapes and parameters to PrimFuncs."""
