"""What ``benchmarks/defaults.py`` does with a task: trains, scores, compares."""
