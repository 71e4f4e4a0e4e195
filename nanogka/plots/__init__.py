"""Plots and the report: what a person would rather look at than read."""
