"""Comparison -> something to read: one file per output, each working on plain data."""
