"""``python -m gdrpy.sim`` prints the path of the simulated driver, for ``LD_PRELOAD``."""

import argparse

from gdrpy import sim


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m gdrpy.sim",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        description="Print the path of the simulated CUDA driver.",
        epilog="""\
Any CUDA program runs on the simulated GPU with

    LD_PRELOAD=$(python -m gdrpy.sim) program

It sees 1 device of 16 GiB by default. The environment changes this:

    GDRPY_SIM_DEVICES=2                 number of devices
    GDRPY_SIM_MEMORY=64G                memory of each (K, M, G, T; a multiple of 2M)
    GDRPY_SIM_FAULT=cuMemCreate:3:2     the third cuMemCreate fails with CUresult 2
""",
    )
    parser.parse_args()
    print(sim.driver_path())


if __name__ == "__main__":
    main()
