"""DisTrO: chunked DCT, top-k, one-bit signs, exact apply and the wire coding.

The plan of the chunks is the core's (`psyche.core.encoding.plan`), for all clients must have the same.
"""
