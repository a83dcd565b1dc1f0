"""The stand-alone script and the curl steps."""
