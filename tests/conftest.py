"""One thread: the tensors of most tests are small, and threads that compete for two cores only wait for each other."""

import torch

torch.set_num_threads(1)
