"""A trained run as a function: predictions, suggestions, evaluation, export."""
