"""The library in other people's training loops: one module per package, which is imported only with that module."""
