"""A run at a glance: `report.html`, one file that needs nothing beside it."""
