"""Proposers: each yields the readings of a folder that one kind of origin allows."""
