"""The parts of a backend on a chain: it follows the record, sends messages, keeps its join alive, and ticks."""
