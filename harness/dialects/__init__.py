"""How each engine is spoken to by reproducers, which know nothing of Coldproof."""
