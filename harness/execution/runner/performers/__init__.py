"""What performs each kind of step on an engine. A file registers its functions; nothing else names them."""
