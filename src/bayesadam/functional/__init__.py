"""Pure tensor mathematics: no modules, no optimisers, no random numbers."""
