"""What the programs' IDLs say: instructions, accounts, events and errors, and the Borsh forms of their data."""
