"""What to make of the numbers."""

NOTES = """\
Notes follow.
"""
