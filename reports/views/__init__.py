"""Views of results that several pages use: headline, requirements, run facts."""
