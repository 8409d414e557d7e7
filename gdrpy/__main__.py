"""The program ``gdrpy``, which is also ``python -m gdrpy``."""


def main() -> int:
    """Run the command line; returns its exit status.

    Ctrl-C ends it quietly as soon as this runs: the command line takes longer to import.
    """
    try:
        from gdrpy.cli import main as run

        return run()
    except KeyboardInterrupt:
        return 130


if __name__ == "__main__":
    raise SystemExit(main())
