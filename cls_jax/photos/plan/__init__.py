"""The plan of a run on a folder: rules for what the user leaves open, and a time budget."""
