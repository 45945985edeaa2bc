"""The sources of datasets, one kind per module."""
