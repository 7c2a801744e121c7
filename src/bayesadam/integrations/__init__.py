"""The library in other packages' loops, and views with their shapes; each module is imported by its own name."""
