"""`python -m mlc_compile` is `mlc-compile`."""

from mlc_compile.cli.app import main

main()
