"""What commands on a chain share: their session there, their options, and the files that they read."""
