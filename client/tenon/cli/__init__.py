"""The command line `tenon`. Works with the client alone; servers are imported when they start."""


def main() -> None:
    """Runs the command line of this process and exits with its code."""
    import sys

    from tenon.cli.app import run

    sys.exit(run(sys.argv[1:]))
