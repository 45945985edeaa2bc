"""One HTML file that shows a run; imported by nothing that writes none: matplotlib is slow."""
