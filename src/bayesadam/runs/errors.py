"""The one error of this package."""


class RunError(ValueError):
    """A fit or a prediction that cannot be done as asked; the message is one line for the user."""
