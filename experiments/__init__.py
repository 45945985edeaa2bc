"""Programs that print the paper's tables, draw its figures and measure speed."""
