"""What the experiments of Bayer et al. 2015 share: networks trained side by side, and their scores."""
