"""What to make of the numbers."""

NOTES = """\
TBD
"""
