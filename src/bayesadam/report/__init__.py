"""A self-contained HTML page about a model: its scores, its calibration, and how to reproduce it."""

from bayesadam.report.write import write_report as write_report
