"""What commands share, and what one of them does beyond parsing: options, outputs, progress, checks, a server's life.

Here belongs nothing that another package needs: the command line is the top floor.
"""
