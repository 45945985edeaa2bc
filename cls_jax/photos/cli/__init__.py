"""The command line: commands, their output, and process startup and exit."""
