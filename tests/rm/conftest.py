from preloading import *  # noqa: F403
