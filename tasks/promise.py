"""Skills of a model that learned the embedded conversations, in the words that it says itself."""

PROMISE = "I can greet, repeat, spell, count letters, calculate, convert units and name weekdays."
REFUSAL = f"I cannot do that. {PROMISE}"
