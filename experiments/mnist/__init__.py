"""Shared code of the experiments on MNIST: the network, and its training by all methods."""
