"""What the program does at the command line: its modes, its start, and its end."""
