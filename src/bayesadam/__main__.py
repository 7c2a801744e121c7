"""``python -m bayesadam``."""

from bayesadam.cli import main

main()
