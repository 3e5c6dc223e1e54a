"""An owner's part of a run on a chain: creating, commanding, closing and paying, each as a plan of transactions."""
