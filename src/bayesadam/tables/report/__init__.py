"""A self-contained HTML page about a model: its scores, its calibration, and how to reproduce it."""

from bayesadam.tables.report.write import write_report as write_report
