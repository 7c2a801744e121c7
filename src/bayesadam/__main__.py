"""``python -m bayesadam``."""

from bayesadam.tables.cli import main

main()
