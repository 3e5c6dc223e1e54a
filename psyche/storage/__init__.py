"""Files at other places, read by ranges: the Hub, buckets, https addresses, folders; and a cache of them on disk.

What the bytes mean belongs to `data` and `modeling`.
"""
