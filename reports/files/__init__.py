"""Files and folders that Coldproof writes."""
