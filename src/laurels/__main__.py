"""The entry point of `python -m laurels`, which is the same as `laurels`."""

from laurels.cli import main

if __name__ == "__main__":
    main()
