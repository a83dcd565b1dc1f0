"""SGLang: attached servers."""
