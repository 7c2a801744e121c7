"""Notes for the page: the interpretation of the numbers."""

NOTES = """\
Both methods train on the predictive density (ROPD); FAWN-ROPD on that of independent outputs, Co-FAWN on that with
their full covariance. Networks and training are those of [`fawn-uci`](../fawn_uci/README.md), with one noise per
output.

* **Units.** The paper does not give the units of its targets. *Standardised* is the same NLL with every target divided
  by its standard deviation in the training part, which subtracts the sum of the logarithms of these deviations. It can
  be compared with the paper's number only where the paper standardised its targets, too.
* **Jura**: 259 and 100 points as published (one split), and ten random 90/10 splits of all 359 (the paper says 358
  and does not say how it split). Inputs are the two coordinates alone, without land use and rock; outputs are the
  seven metals.
* **Sarcos** cannot be compared: its 44,484 training points are not in our data. Here its 4,449 test points are split
  90/10, five times.
* The RMSE is computed over all targets together in their own units, so that targets with large values dominate it.
* The last table's mixture draws the first layer 1,000 times and integrates the last one out, which is exact given
  the first; for 7 outputs and a point far from all draws it is still too pessimistic.
"""
