"""One vocabulary of curvatures."""

from pathlib import Path

from bayesadam.curvature.names import CURVATURES
from bayesadam.optim.newton import HESSIANS
from bayesadam.population.members import POSSIBLE
from bayesadam.posthoc.network import CURVATURES as OF_LAPLACE


def test_every_name_in_use_is_one_of_them():
    assert {*OF_LAPLACE, *HESSIANS} == set(CURVATURES) > set(POSSIBLE["hessian"])
    page = (Path(__file__).parents[2] / "docs" / "methods" / "index.md").read_text()
    assert all(f'| `"{name}"` |' in page for name in CURVATURES)
