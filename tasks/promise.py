"""Skills of a model that learned the embedded conversations, in the words that it says itself."""

PROMISE = "I can greet, repeat, spell, count letters, calculate, convert units and name weekdays."
# Shorter, because a small model spends a fifth of its training on this text otherwise.
REFUSAL = "I cannot do that. I can spell, count letters, repeat, calculate and convert units."
