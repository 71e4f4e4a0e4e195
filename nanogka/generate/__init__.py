"""Generation: sampling, the batched engine, streaming text, sessions and their terminal."""
