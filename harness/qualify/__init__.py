"""Release qualification: the frozen requirements, what a run of them records, and whether its bundle proves them."""
