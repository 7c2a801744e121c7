"""Two ranks (gloo, CPU): data parallel and FSDP2. What they do is in workers.py."""

from two_ranks import in_two_ranks


def test_two_ranks(tmp_path):
    in_two_ranks("curvature.workers", ["data_parallel", "unused_on_one_rank", "sharded"], tmp_path)
