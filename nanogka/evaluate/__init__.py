"""Bits per byte, the three in-context-learning protocols, chat evaluation, and the scores made of them."""
