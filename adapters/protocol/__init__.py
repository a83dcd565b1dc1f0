"""What every engine adapter has to offer, as types, and the wrapper that checks an adapter."""
