"""DisTrO: chunked DCT, top-k selection, 1-bit signs, exact apply, and the coding of payloads."""
