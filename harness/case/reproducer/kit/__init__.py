"""What a stand-alone script does with a case: it sends the requests, and compares the answers."""
