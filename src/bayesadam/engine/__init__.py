"""The engine of all weight-perturbed methods: samples, steps, sources of curvature, and their execution."""
