"""Pure tensor mathematics, without modules, optimisers and random numbers."""
