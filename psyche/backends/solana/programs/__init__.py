"""The compiled programs: their ids and bytes, how they get onto a chain, and which ones are there."""
