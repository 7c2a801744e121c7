"""One vocabulary of curvatures."""

from pathlib import Path

from bayesadam.optim.newton import HESSIANS
from bayesadam.population.members import POSSIBLE
from bayesadam.posthoc.trained_network import CURVATURES


def test_the_page_explains_every_name():
    names = {*CURVATURES, *HESSIANS}
    assert names > set(POSSIBLE["hessian"])
    page = (Path(__file__).parents[2] / "docs" / "methods" / "index.md").read_text()
    assert all(f'| `"{name}"` |' in page for name in names)
