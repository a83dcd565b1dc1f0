"""The report of one run, index.html."""
