"""Many real sessions at once, and what must be true whatever they do."""
