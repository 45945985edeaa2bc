"""A page in the browser to label a folder of photographs, and the session behind it."""
