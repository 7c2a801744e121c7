import numpy as np
import pytest

from bayesadam.tables.estimators.plan import LARGE, default_steps, plan


@pytest.mark.parametrize(("rows", "members"), [(100, 20), (101, 7), (37, 4), (50, 5)])
def test_two_partitions_cover_every_row_twice(rows, members):
    divided = plan(rows, members, np.arange(rows), 3)
    assert divided.left_out.shape == (members, rows)
    assert (divided.left_out.sum(0) == 2).all()
    first = members - members // 2
    for part in (divided.left_out[:first], divided.left_out[first:]):
        sizes = part.sum(1)
        assert sizes.max() - sizes.min() <= 1
    assert not divided.shared
    assert not np.array_equal(divided.left_out[0], divided.left_out[first])


def test_groups_stay_together():
    groups = np.repeat(np.arange(12), 5)
    for members in (1, 3, 8):
        for mask in plan(60, members, groups, 1).left_out:
            left_out = {group for group, out in zip(groups, mask, strict=True) if out}
            kept = {group for group, out in zip(groups, mask, strict=True) if not out}
            assert not left_out & kept
            assert kept
    assert plan(60, 3, groups, 1).independent == 12 / 60
    assert plan(60, 3, np.minimum(np.arange(60), 30), 1).independent == pytest.approx(60 / (30 + 30**2))
    fold = plan(60, 8, groups, 1).fold
    assert (fold.reshape(12, 5) == fold[::5, None]).all()
    assert sorted(np.bincount(fold[::5])) == [1] * 8 + [2] * 2


def test_large_tables_share_one_held_out_part():
    rows = LARGE + 5_000
    divided = plan(rows, None, np.arange(rows), 0)
    assert divided.shared
    assert len(divided.left_out) == 5
    assert (divided.left_out == divided.left_out[0]).all()
    assert divided.left_out[0].sum() == 2_500
    assert plan(300_000, None, np.arange(300_000), 0).left_out[0].sum() == 10_000


def test_one_group_leaves_nothing_out():
    assert not plan(10, 4, np.zeros(10, dtype=np.int64), 0).left_out.any()


def test_members_by_rows():
    assert [len(plan(n, None, np.arange(n), 0).left_out) for n in (100, 6_000, LARGE + 1)] == [20, 10, 5]


def test_steps():
    assert default_steps(500, 500, 2_000) == 2_000
    assert default_steps(1_000_000, 1_024, 2_000) == 19_540
    assert default_steps(10_000_000, 1_024, 2_000) == 20_000
