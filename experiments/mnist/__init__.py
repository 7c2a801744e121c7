"""What the experiments on MNIST share: one network, and training by every method that is compared."""
