"""Where datasets come from; each module reads one kind of source."""
