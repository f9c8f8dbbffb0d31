"""Makes `python -m tenon` the command line."""

from tenon.cli import main

main()
