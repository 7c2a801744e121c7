"""Several ranks (gloo, CPU): data parallel, FSDP2, sharded checkpoints. What they do is in workers.py."""

from two_ranks import in_two_ranks

FUNCTIONS = [
    "data_parallel",
    "sharded",
    "sharded_on_any_axis",
    "sharded_checkpoint",
    "bad_gradient_in_one_shard",
    "predictions_of_a_sharded_network",
    "sharded_after_the_optimiser",
    "save_sharded",
]
OWN_SAMPLES = [
    "one_sample_for_each_rank",
    "scaled_and_clipped_samples_of_ranks",
    "only_the_second_rank_uses_the_branch",
    "own_samples_are_refused",
]


def test_two_ranks_are_one_process_and_their_checkpoints_go_on_with_any_number(tmp_path):
    in_two_ranks("optim.workers", FUNCTIONS, tmp_path)
    for size in (1, 4):
        in_two_ranks("optim.workers", ["load_resharded"], tmp_path, size=size)


def test_a_sample_for_each_rank(tmp_path):
    in_two_ranks("optim.workers", OWN_SAMPLES, tmp_path)
