"""One HTML file that shows a run."""
