"""``python -m experiments``, from the repository root."""

from experiments.commands import app

if __name__ == "__main__":  # worker processes may import this module
    app(prog_name="python -m experiments")
