"""`python -m laurels` is the same as `laurels`."""

from laurels.cli import main

if __name__ == "__main__":
    main()
