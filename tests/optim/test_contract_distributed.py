"""Two ranks (gloo, CPU): data parallel, FSDP2, sharded checkpoints. What they do is in workers.py."""

from two_ranks import in_two_ranks

FUNCTIONS = [
    "data_parallel",
    "hessian_of_a_quadratic",
    "sharded",
    "sharded_checkpoint",
    "bad_gradient_in_one_shard",
    "sharded_on_any_axis",
    "posterior_as_prior_of_a_sharded_network",
    "predictions_of_a_sharded_network",
    "samples_in_tensors_that_are_sharded_otherwise",
]

OWN_SAMPLES = ["one_sample_for_each_rank", "ranks_hold_different_samples", "own_samples_are_refused_for_shards"]


def test_two_ranks(tmp_path):
    in_two_ranks("optim.workers", FUNCTIONS, tmp_path)


def test_a_sample_for_each_rank(tmp_path):
    in_two_ranks("optim.workers", OWN_SAMPLES, tmp_path)
