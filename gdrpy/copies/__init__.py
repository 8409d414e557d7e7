"""Which way a copy goes, and copies by the GPU."""
