"""What honest members of verified runs show."""
