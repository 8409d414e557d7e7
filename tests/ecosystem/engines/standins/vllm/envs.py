"""vLLM's environment variables."""


def compile_factors() -> dict[str, object]:
    """Those that decide on what is compiled."""
    return {}
