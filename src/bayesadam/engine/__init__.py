"""The engine of all weight-perturbed methods: a sample, a step, where curvature comes from, and what runs them."""
