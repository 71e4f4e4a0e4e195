"""Figures and the report of a run."""
