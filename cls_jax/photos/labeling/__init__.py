"""A page in the browser to label a folder of photos, and the session behind it."""
