"""The screen of `psyche watch --tui`: textual, in a process of its own; trio runs as a guest of textual's loop."""
