"""Rows with labels, prepared in advance: read from Parquet, or written from chats and texts."""
