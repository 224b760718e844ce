"""`python -m takehold` is the command line."""

from takehold.cli import main

if __name__ == "__main__":
    raise SystemExit(main())
