"""Where datasets come from. Each module reads one kind of source."""
