"""Two ranks (gloo, CPU): data parallel and FSDP2. What they do is in workers.py."""

import pytest

from two_ranks import in_two_ranks


@pytest.mark.parametrize("function", ["data_parallel", "unused_on_one_rank", "sharded"])
def test_two_ranks(function, tmp_path):
    in_two_ranks("curvature.workers", function, tmp_path)
