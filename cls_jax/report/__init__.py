"""One HTML file that shows a run. Import it only to write a report: matplotlib is slow to load."""
