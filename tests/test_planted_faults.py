"""That the faults of ``planted_faults.toml`` can be planted in the code as it is."""

import pytest

from planted_faults import FAULTS, ROOT


@pytest.mark.parametrize("fault", FAULTS, ids=range(1, len(FAULTS) + 1))
def test_each_fault_is_one_line_of_today(fault):
    assert (ROOT / "src" / "bayesadam" / fault.file).read_text(encoding="utf-8").count(fault.old) == 1
    for chosen in fault.tests.split():
        assert (ROOT / "tests" / chosen.partition("::")[0]).exists()
