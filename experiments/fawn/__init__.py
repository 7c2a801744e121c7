"""Shared code of the experiments of Bayer et al. 2015: the training of several networks at once, and their scores."""
