"""Bits per byte, the three in-context-learning protocols, chat evaluation, and their scores."""
