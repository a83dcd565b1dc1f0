"""Shows runs side by side on one page: two runs, releases, engines or qualifications."""
