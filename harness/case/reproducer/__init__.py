"""The stand-alone script of a case."""
