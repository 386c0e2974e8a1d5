"""`python -m headrace.ops.cli`: the command line where the script is not on the path."""

from headrace.ops.cli import main

main()
