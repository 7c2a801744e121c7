"""What to make of the numbers."""

NOTES = """\
NOTES TO BE WRITTEN
"""
