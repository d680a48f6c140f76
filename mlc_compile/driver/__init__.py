"""The compiler as a page: convert, compile and build join the stages, one file each."""
