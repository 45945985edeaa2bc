"""The command line: what each mode does and prints, and the start and end of a process."""
