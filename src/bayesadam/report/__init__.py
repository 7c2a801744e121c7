"""One self-contained HTML page about a model: how good it is, how honest, and how to make it again."""

from bayesadam.report.write import write_report as write_report
