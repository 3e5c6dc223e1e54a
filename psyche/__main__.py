"""`python -m psyche` is the `psyche` command."""

from psyche.cli.main import main

if __name__ == "__main__":
    main()
