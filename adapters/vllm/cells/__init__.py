"""The cells of vLLM: the configurations in which its engines are started."""
