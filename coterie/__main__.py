"""`python -m coterie`: the `coterie` command, in a form that torchrun can start."""

from coterie.cli.app import main

if __name__ == "__main__":
    main()
