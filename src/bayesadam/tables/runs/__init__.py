"""Runs: a fit from a table to a folder with everything about it, and predictions from that folder."""
