"""`psyche train`: one process, no network, no coordinator. It uses `psyche.modeling` and `psyche.data` directly."""
