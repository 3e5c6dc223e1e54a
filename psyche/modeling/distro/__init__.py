"""DisTrO: chunked DCT, top-k, one-bit signs, exact apply and the wire coding."""
